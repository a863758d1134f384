"""What happens in a run, as plain data: the one source of progress, notes and the time line."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    @property
    def note(self) -> str:
        """A line for a person; empty if the event is not worth one."""
        return ""


class UnitDone(Event, frozen=True, tag="unit_done"):
    """A unit is written."""

    unit: str
    rows: int
    quarantined: int
    tokens: int
    text_bytes: int
    input_bytes: int  # of its segment, with the segment's last unit


class FilesBegun(Event, frozen=True, tag="files_begun"):
    """Files are made from now on, of tokens that are there."""

    files: int
    bytes: int  # about so many


class FileMade(Event, frozen=True, tag="file_made"):
    """A file, or a range of one, is made and durable."""

    file: str
    bytes: int


class UnitLost(Event, frozen=True, tag="unit_lost"):
    """A unit that was done is not: the host that wrote it had not synced it."""

    unit: str
    rows: int
    quarantined: int
    tokens: int
    text_bytes: int
    input_bytes: int


class Resumed(Event, frozen=True, tag="resumed"):
    """A segment was done by an earlier run."""

    input_bytes: int


class WorkerDied(Event, frozen=True, tag="worker_died"):
    how: str
    searching: bool  # for a fatal row: then the end was expected

    @property
    def note(self) -> str:
        return "" if self.searching else f"a worker {self.how}; replaced, its work is done again"


class WorkerLost(Event, frozen=True, tag="worker_lost"):
    """A worker of a cluster is gone with its node, or was preempted."""

    host: str

    @property
    def note(self) -> str:
        return f"a worker on {self.host} was preempted or lost its node; its work is done again"


class Retry(Event, frozen=True, tag="retry"):
    """A segment is given to a worker once more."""

    source: int
    segment: int


class RowsTried(Event, frozen=True, tag="rows_tried"):
    """A worker is about to encode rows one by one."""

    source: str
    segment: int


class SearchBegun(Event, frozen=True, tag="search_begun"):
    source: str
    unit: str
    deaths: int
    rows: int

    @property
    def note(self) -> str:
        return (
            f"{self.source}: {self.deaths} workers died on unit {self.unit}; the {self.rows} rows "
            "that were being encoded are tried one by one"
        )


class SearchEnded(Event, frozen=True, tag="search_ended"):
    source: str
    found: int

    @property
    def note(self) -> str:
        return f"{self.source}: rows that end their worker: {self.found} found"


class Quarantine(Event, frozen=True, tag="quarantine"):
    """Rows of a unit that were quarantined."""

    source: str
    unit: str
    rows: int
    fatal_rows: list[int]  # those of them that ended their worker


class Download(Event, frozen=True, tag="download"):
    """An input file is here now."""

    source: str
    bytes: int


class Downloading(Event, frozen=True, tag="downloading"):
    """How far the downloads are, when that has changed, once a second."""

    downloaded_bytes: int
    total_bytes: int
    files: int  # at a time


class Making(Event, frozen=True, tag="making"):
    """How many bytes of files are made, with those of files under way; once a second."""

    made_bytes: int


class DownloadNote(Event, frozen=True, tag="download_note"):
    """Something about a download that a person should know: a retry, a copy made again."""

    text: str

    @property
    def note(self) -> str:
        return self.text


class WorkersAtWork(Event, frozen=True, tag="workers", omit_defaults=True):
    """A worker was started: so many are there now."""

    workers: int
    nodes: int = 0  # of a cluster


class Speed(Event, frozen=True, tag="speed", omit_defaults=True):
    """How far the run is, every few seconds."""

    input_bytes: int
    input_bytes_total: int
    tokens: int
    tokens_per_second: int  # since the last such event
    text_bytes_per_second: int
    downloaded_bytes: int
    workers: int
    retries: int = 0
    nodes: int = 0  # of a cluster
    preemptions: int = 0
