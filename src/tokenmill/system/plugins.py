"""What installed packages add: objects behind entry points."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any

from tokenmill.errors import UsageError


@functools.cache
def added(group: str, kind: type) -> tuple[Any, ...]:
    """The objects of an entry point group, each of which must be a `kind`.

    To look for entry points takes some 20 ms: ask only for a name that is not one of ours.
    """
    found = []
    for point in metadata.entry_points(group=group):
        package = point.dist.name if point.dist is not None else "?"
        hint = f"repair or uninstall the package {package}"
        try:
            one = point.load()
        except Exception as error:  # somebody else's code: anything
            raise UsageError(
                f"{package}: its {group} {point.name!r} cannot be imported: {error!r}", hint=hint
            ) from None
        if not isinstance(one, kind):
            raise UsageError(
                f"{package}: its {group} {point.name!r} is not of the class {kind.__name__}",
                hint=hint,
            )
        found.append(one)
    return tuple(found)
