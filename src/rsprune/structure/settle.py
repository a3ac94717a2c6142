"""Finds the widths that Python code holds, by cutting a double of the model and running it.

What breaks is mended in this order: a module attribute that holds the width is updated with it;
channels that the code takes for equal in number are tied; and else the group is frozen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch.nn.modules.batchnorm import _NormBase

from rsprune.errors import TraceError
from rsprune.structure.check import NUMBER, Failure, explicable, suspects
from rsprune.structure.cut import Attribute, Traced, check_cut, same_in_numbers
from rsprune.structure.groups import ChannelGroup, form_groups
from rsprune.structure.labels import Frozen, LabelStore
from rsprune.structure.layout import Labels

_ROUNDS = 200
_PATIENT = 60  # rounds in which mending is tried before freezing

Place = tuple[int, int]  # a record and a step of it


class Settled(NamedTuple):
    """The outcome: groups that can be cut, and the attributes to update with them."""

    groups: tuple[ChannelGroup, ...]
    root: Labels
    attributes: tuple[Attribute, ...]


@dataclass
class _Search:
    traced: Traced
    store: LabelStore
    attributes: dict[Place, tuple[Attribute, ...]] = field(default_factory=dict)
    ties: dict[Place, list[tuple[Labels, Labels]]] = field(default_factory=dict)
    tried: set[object] = field(default_factory=set)
    trusted: set[int] = field(default_factory=set)  # first representatives of groups
    always: list[Attribute] = field(default_factory=list)
    budget: int = 30  # how often to halve, since every time the model is run

    @property
    def held(self) -> list[Attribute]:
        return [*self.always, *(a for own in self.attributes.values() for a in own)]

    def failures(self, root: Labels, groups: Sequence[ChannelGroup], seed: int) -> list[Failure]:
        """What goes wrong with some units of ``groups`` dropped."""
        alive = _trial(groups, len(root), seed)
        return check_cut(self.traced, root, alive[root], self.held)

    def same_in_numbers(self, root: Labels, groups: Sequence[ChannelGroup], seed: int) -> bool:
        """Whether the model with these units dropped computes the same as with them zero."""
        alive = _trial(groups, len(root), seed)
        return same_in_numbers(self.traced, alive[root], self.held)


def settle(traced: Traced, store: LabelStore) -> Settled:
    """Cut and mend until nothing breaks."""
    search = _Search(traced, store, always=_unread_widths(traced))
    for round_ in range(_ROUNDS):
        root = store.roots()
        groups = form_groups(traced.labels, root, store.frozen_roots(root))
        if all(record.agnostic for record in traced.records):  # no code could hold a width
            return Settled(groups, root, tuple(search.always))
        cut = [g for g in groups if g.prunable and int(g.roots[0]) not in search.trusted]
        failures = _trials(search, root, cut, round_)
        if not failures:
            return Settled(groups, root, tuple(search.held))
        if not cut:
            raise TraceError(f"The model does not run twice alike: {failures[0]}")
        _withdraw(search, failures)
        first = list({failure.module: failure for failure in reversed(failures)}.values())
        mended = [round_ < _PATIENT and _mended(search, failure, root) for failure in first]
        if not any(mended):
            for failure in first:
                _give_up(search, failure, root, cut, round_)
    raise TraceError("No cut of the model was found that runs as before; please report this.")


def _trials(search: _Search, root: Labels, cut: Sequence[ChannelGroup], seed: int) -> list[Failure]:
    """What goes wrong, first with the large groups cut, then with all.

    A cut may leave one unit of a small group, and torch treats dimensions of size 1 in ways that
    labels cannot follow; then numbers decide.
    """
    if cut and search.traced.real and not search.same_in_numbers(root, cut, seed):
        return [Failure(0, 0, "forward", "", "", NUMBER)]  # code that looks at values
    large = [group for group in cut if group.size > 3]
    failures = search.failures(root, large, seed)
    if failures:
        return failures
    if len(large) == len(cut):
        return search.failures(root, cut, seed + 1) if _slices(search.traced) else []
    for parity in (seed, seed + 1):  # one cut may fit by chance
        failures = search.failures(root, cut, parity)
        if failures and not (explicable(failures) and search.same_in_numbers(root, cut, parity)):
            return failures
    search.trusted.update(int(group.roots[0]) for group in cut if group.size <= 3)
    return []


def _trial(groups: Sequence[ChannelGroup], count: int, seed: int) -> Labels:
    """Some units of every group dropped, of groups of equal size a different number each."""
    generator = np.random.default_rng(seed)
    alive = np.ones(count, dtype=bool)
    seen: dict[int, int] = {}
    for group in groups:
        turn = seen.get(group.size, seed)
        seen[group.size] = turn + 1
        # at least two stay where possible: a dimension of size 1 cannot be followed as well
        dropped = turn % 2 if group.size == 2 else 1 + turn % max(group.size - 2, 2)
        alive[generator.permutation(group.roots)[:dropped]] = False
    return alive


def _slices(traced: Traced) -> bool:
    """Whether the model picks ranges of channels."""
    names = ("slice", "split_with_sizes")
    steps = [step for record in traced.records for step in record.steps if step.name in names]
    return any(layout.blocks for step in steps for layout in step.layouts)


def _unread_widths(traced: Traced) -> list[Attribute]:
    """Norms without parameters hold a width that their code does not need but compares."""
    found = []
    for name, module in traced.model.named_modules():
        plain = isinstance(module, _NormBase) and module.weight is None
        if not plain or module.running_mean is not None:
            continue
        for index, record in enumerate(traced.records):
            at = [i for i, step in enumerate(record.steps) if step.module == name]
            if at and record.steps[at[-1]].shapes[0][1:2] == (module.num_features,):
                found.append(Attribute(name, "num_features", None, index, at[-1], 0, 1))
                break
    return found


def _withdraw(search: _Search, failures: Sequence[Failure]) -> None:
    """Take back the updates that did not help."""
    for failure in failures:
        attributes = search.attributes.pop((failure.record, failure.step), None)
        if attributes is not None:
            search.tried.add(attributes)


def _mended(search: _Search, failure: Failure, root: Labels) -> bool:
    """Try attributes or a tie that were not tried yet."""
    at = (failure.record, failure.step)
    if failure.message == NUMBER:
        return False
    for attributes in _proposals(search, failure):
        if attributes not in search.tried:
            search.attributes[at] = attributes
            return True
    for a, b in _equals(failure):
        key = (*at, a.tobytes(), b.tobytes())
        if key not in search.tried and (root[a] != root[b]).any():
            _untie(search, at)
            search.tried = {key} | {t for t in search.tried if not _about(t, at)}
            search.ties[at] = [(a, b)]
            search.store.pairs.append(search.ties[at][0])
            return True
    return False


def _about(tried: object, at: Place) -> bool:
    """Whether what was tried are attributes for this place."""
    return isinstance(tried, tuple) and isinstance(tried[0], Attribute) and tried[0][3:5] == at


def _untie(search: _Search, at: Place) -> None:
    for tie in search.ties.pop(at, ()):
        search.store.pairs = [pair for pair in search.store.pairs if pair is not tie]


def _proposals(search: _Search, failure: Failure) -> Iterator[tuple[Attribute, ...]]:
    """Attributes to update: those for all widths that the operator was given, then single ones."""
    yield from _lists(search, failure)
    wanted = [full for full in failure.widths if full in failure.numbers or not failure.numbers]
    held = [own for full in wanted if (own := list(_holders(search, failure, full)))]
    if len(held) > 1:
        yield tuple(own[0] for own in held)
    for own in held:
        for attribute in own:
            yield (attribute,)


def _lists(search: _Search, failure: Failure) -> Iterator[tuple[Attribute, ...]]:
    """Lists that hold the sizes into which the operator splits its input."""
    steps = search.traced.records[failure.record].steps
    shapes = steps[failure.step].shapes if failure.step < len(steps) else ()
    owner = failure.module
    for name, value in vars(search.traced.model.get_submodule(owner)).items():
        if not isinstance(value, list | tuple) or len(value) != len(shapes) or len(shapes) < 2:
            continue
        for dim in range(len(shapes[0])):
            if list(value) == [shape[dim] for shape in shapes]:
                at = (failure.record, failure.step)
                yield tuple(Attribute(owner, name, k, *at, k, dim) for k in range(len(value)))


def _holders(search: _Search, failure: Failure, full: int) -> Iterator[Attribute]:
    """Attributes of the module or of those around it that hold a width, or a multiple of it."""
    found = []
    output, dim = failure.sites[full]
    owner = failure.module
    while True:
        module = search.traced.model.get_submodule(owner)
        for name, value in vars(module).items():
            if name.startswith("_") or name == "training":
                continue
            entries = list(enumerate(value)) if isinstance(value, list | tuple) else [(None, value)]
            for place, entry in entries:
                if type(entry) is int and entry in (full, 2 * full, 3 * full, 4 * full):
                    where = (failure.record, failure.step, output, dim, entry // full)
                    found.append(Attribute(owner, name, place, *where))
        if not owner:
            return iter(sorted(found, key=lambda attribute: attribute.factor))
        owner = owner.rpartition(".")[0]


def _equals(failure: Failure) -> Iterator[tuple[Labels, Labels]]:
    """Channels of equal number that the code may take for the same number."""
    for labels in [*failure.blamed, *failure.handled]:
        flat = labels.ravel()
        for size in failure.widths if labels.ndim == 1 else ():  # the halves of x[:, : c // 2]
            if flat.size % size == 0 and 1 < flat.size // size <= 4:
                parts = flat.reshape(-1, size)
                yield parts[1:].ravel(), np.broadcast_to(parts[0], parts[1:].shape).ravel()
        for entered in failure.entered:  # a module's inside as wide as its input
            inside = flat[: entered.size]
            fits = entered.ndim == 1 and entered.size > 1 and flat.size % entered.size == 0
            apart = fits and not np.isin(inside, entered).any()
            if apart and len(np.unique(inside)) > 1:
                yield inside, entered


def _give_up(
    search: _Search, failure: Failure, root: Labels, groups: Sequence[ChannelGroup], seed: int
) -> None:
    """Freeze the groups that a failure is most likely about."""
    _untie(search, (failure.record, failure.step))
    culprits: Sequence[ChannelGroup] = suspects(failure, root, groups)
    if failure.message == NUMBER or len(culprits) == len(groups):
        culprits = _narrowed(search, failure, root, culprits, seed)
    literal = failure.message != NUMBER
    reason = f"the code holds a width ({failure.line}); in a trial cut, " if literal else ""
    for group in culprits:
        why = Frozen(failure.name, failure.module, reason + failure.message)
        search.store.freeze(group.roots, why)


def _narrowed(
    search: _Search, failure: Failure, root: Labels, groups: Sequence[ChannelGroup], seed: int
) -> Sequence[ChannelGroup]:
    """Those of ``groups`` that fail at the same place without the others, found by halving."""
    search.budget -= 1
    if len(groups) <= 1 or search.budget < 0:
        return groups
    found: list[ChannelGroup] = []
    middle = len(groups) // 2
    for half in (groups[:middle], groups[middle:]):
        again = search.failures(root, half, seed)
        if any(
            (f.record, f.name, f.line) == (failure.record, failure.name, failure.line)
            for f in again
        ):
            found.extend(_narrowed(search, failure, root, half, seed))
    return found or groups
