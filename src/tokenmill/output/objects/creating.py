"""Create a file that must be ours: the one step of which two coordinators cannot both be sure.

A store may answer that a file exists already where it was this very request that made it: the
first answer was lost, and the request repeated. So the answer decides nothing; what is there does.
"""

from __future__ import annotations

from tokenmill.errors import RefusedError, StorageError
from tokenmill.system.store import ObjectStore, read_small

TRIES = 10


def create_once(store: ObjectStore, name: str, content: bytes) -> None:
    """A file of this content. The same content there already is ours, or that of a coordinator
    that does the same work; another content is refused."""
    for _ in range(TRIES):
        try:
            store.create(name, content)
            return
        except RefusedError:
            try:
                found = read_small(store, name)
            except FileNotFoundError:
                continue  # two requests got into each other's way, and neither was carried out
            if found == content:
                return
            raise RefusedError(
                f"{store.where(name)}: exists already, with another content",
                hint="another coordinator is at work on this output: let it finish, then run the "
                "same command again",
            ) from None
    raise StorageError(
        f"{store.where(name)}: cannot be created: {TRIES} attempts met with another request",
        hint="run the same command again: it resumes",
    )
