"""Which group each slice of a parameter belongs to, for group-sparse optimizers.

A group is a set of slots ``(parameter, dim, index)``: the slice of the parameter at ``index`` along
``dim``. Groups may span several parameters (a filter, its bias, its batch norm). Two groups may not
share an element; hence the slots of one parameter all lie along one dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import NoReturn

import torch
from torch import Tensor

from rsprune.errors import InvalidParameterError

Slot = tuple[Tensor, int, int]
Groups = Iterable[Iterable[Slot]]
GroupSource = Groups | Callable[[list[Tensor]], Groups]
Membership = tuple[int, Tensor]  # a parameter's dim, and the group of every index along it


def memberships(
    owner: str, params: Sequence[Tensor], groups: Groups | None
) -> tuple[list[Membership], int]:
    """The membership of every parameter and the number of groups.

    None stands for one group per output filter, that is per index along dim 0. Indices in no group
    get the number of groups as theirs.
    """
    if groups is None:
        return _filter_memberships(params)
    groups = listed(owner, groups)
    dims: dict[Tensor, int] = {}
    owners: dict[Tensor, list[int]] = {}
    known = set(params)
    for number, group in enumerate(groups):
        if not group:
            _refuse(owner, "groups with at least one slot", f"an empty group {number}")
        for slot in group:
            param, dim, index = _checked(owner, slot, known)
            if dims.setdefault(param, dim) != dim:
                _refuse(
                    owner, "groups that share no element",
                    f"slots along dim {dims[param]} and dim {dim} of one parameter",
                )  # fmt: skip
            numbers = owners.setdefault(param, [len(groups)] * _length(param, dim))
            if numbers[index] != len(groups):
                _refuse(owner, "groups that share no element", f"index {index} of dim {dim} twice")
            numbers[index] = number
    return [
        (
            dims.get(p, 0),
            torch.tensor(owners.get(p, [len(groups)] * _length(p)), device="cpu"),
        )
        for p in params
    ], len(groups)


def remaining(
    members: Sequence[Membership], count: int, kept: Sequence[Mapping[int, Tensor]]
) -> tuple[list[Membership], int]:
    """The memberships of parameters that were cut, and the number of groups that are left.

    Args:
        members: of the parameters before.
        count: of the groups before.
        kept: for each parameter, the indices that remain along the dimensions that are cut.
    """
    cut = [
        (dim, ids.cpu()[own[dim].cpu()] if dim in own else ids.cpu())
        for (dim, ids), own in zip(members, kept, strict=True)
    ]
    left = torch.zeros(count + 1, dtype=torch.bool)
    for _, ids in cut:
        left[ids] = True
    left[count] = True  # what is in no group has the last number, then as now
    numbers = left.cumsum(0) - 1
    return [(dim, numbers[ids]) for dim, ids in cut], int(numbers[-1])


def listed(owner: str, groups: object) -> list[list[Slot]]:
    """Groups as lists of slots, refused where they are not collections of collections."""
    if not isinstance(groups, Iterable) or isinstance(groups, str | Tensor):
        _refuse(owner, "a list of groups", repr(groups))
    found = []
    for group in groups:
        if not isinstance(group, Iterable) or isinstance(group, str | Tensor):
            _refuse(owner, "a list of groups of slots", repr(group))
        found.append(list(group))
    return found


def starts_in(group: Sequence[Slot], params: set[Tensor]) -> bool:
    """Whether the first slot of a group is one of these parameters'."""
    first = group[0] if group else None
    return isinstance(first, tuple) and len(first) > 0 and first[0] in params


def group_sums(values: Iterable[tuple[Tensor, Membership]], count: int) -> Tensor:
    """Sum per-index values into their groups; the last entry gathers what is in no group."""
    total: Tensor | None = None
    for value, (_, ids) in values:
        if total is None:
            total = value.new_zeros(count + 1)
        total = total.index_add(0, ids, value.to(total))
    assert total is not None
    return total


def along(per_group: Tensor, membership: Membership, like: Tensor) -> Tensor:
    """Spread a per-group vector over a parameter, ready to broadcast."""
    dim, ids = membership
    shape = [1] * like.dim()
    if shape:
        shape[dim] = -1
    spread = per_group[ids].view(shape)
    return spread if spread.dtype == torch.bool else spread.to(like.dtype)


def ungrouped(per_group: Tensor, value: int) -> Tensor:
    """``per_group`` with the entry of what is in no group, the last one, set to ``value``."""
    return torch.cat([per_group[:-1], torch.full_like(per_group[-1:], value)])


def group_norms(tensors: Sequence[Tensor], members: Sequence[Membership], count: int) -> Tensor:
    """The Euclidean norm of every group, and of what is in no group as the last entry."""
    squares = ((sums_along(t * t, m), m) for t, m in zip(tensors, members, strict=True))
    return group_sums(squares, count).sqrt()


def sums_along(tensor: Tensor, membership: Membership) -> Tensor:
    """Sum a tensor over every dimension but the membership's, in at least single precision."""
    others = [d for d in range(tensor.dim()) if d != membership[0]]
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.sum(others, dtype=wide) if others else tensor.to(wide).reshape(-1)


def _filter_memberships(params: Sequence[Tensor]) -> tuple[list[Membership], int]:
    start, result = 0, []
    for param in params:
        result.append((0, torch.arange(start, start + _length(param), device="cpu")))
        start += _length(param)
    return result, start


def _length(param: Tensor, dim: int = 0) -> int:
    return param.shape[dim] if param.dim() else 1


def _checked(owner: str, slot: Slot, known: set[Tensor]) -> Slot:
    if not isinstance(slot, tuple) or len(slot) != 3:
        _refuse(owner, "groups of slots (parameter, dim, index)", repr(slot))
    param, dim, index = slot
    if not isinstance(param, Tensor) or param not in known:
        _refuse(owner, "slots of parameters of the same parameter group", "another parameter")
    if not isinstance(dim, Integral) or not 0 <= dim < max(param.dim(), 1):
        _refuse(owner, f"slots with a dim in the range [0, {max(param.dim(), 1)})", f"dim {dim}")
    size = _length(param, dim)
    if not isinstance(index, Integral) or not 0 <= index < size:
        _refuse(owner, f"slots with an index in the range [0, {size})", f"index {index}")
    return slot


def _refuse(owner: str, allowed: str, value: str) -> NoReturn:
    raise InvalidParameterError(
        owner, "groups", allowed, value, "A slot is (parameter, dim, index)."
    )
