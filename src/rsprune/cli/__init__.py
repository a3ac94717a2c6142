"""The command line: ``rsprune compress`` and its companions."""

from __future__ import annotations

import sys

_EXTRAS = {
    "cli": (
        "accelerate",
        "jinja2",
        "optuna",
        "plotly",
        "pydantic",
        "rich",
        "tomli",
        "tomli_w",
        "typer",
    ),
    "export": ("onnx", "onnxruntime", "onnxscript"),
}


def main() -> None:
    """Run the command line and exit."""
    try:
        from rsprune.cli.app import run

        code = run(sys.argv[1:])
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        for extra, packages in _EXTRAS.items():
            if missing in packages:
                sys.exit(f'rsprune: this needs {missing}: pip install "rsprune[{extra}]"')
        sys.exit(f"rsprune: {error}")
    except KeyboardInterrupt:  # while libraries are imported
        code = 130
    sys.exit(code)
