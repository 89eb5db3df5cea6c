"""What a service serves and how, the same in all of its processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from speedyfeed.serving.app import build_app
from speedyfeed.serving.connections import connection_class
from speedyfeed.serving.dependencies import WorkerPlace
from speedyfeed.serving.middleware import Limits, WriteAccess
from speedyfeed.serving.service import Service

GRACE_SECONDS = 10
"""Time that requests in progress have to finish when the service is stopped; then they are answered with 503."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Runs that are served side by side, and the settings of the server."""

    address: str
    """Where a browser finds it."""
    folders: Mapping[Path, Path]
    """Folder of what is added to each run, by the folder of the run, not resolved; the first is at /."""
    write_access: WriteAccess
    precision: str = "auto"
    allow_origins: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)

    @property
    def data(self) -> Path:
        """Folder of what is added to the first run."""
        return next(iter(self.folders.values()))

    def open_journals(self, *, shared: bool) -> list[Service]:
        """The services of all runs, not loaded yet."""
        return [Service(run, data, precision=self.precision, shared=shared) for run, data in self.folders.items()]

    def configure(
        self, services: Sequence[Service], worker: int = 0, places: Sequence[WorkerPlace] = ()
    ) -> uvicorn.Config:
        """Settings of the server of these services; `places` are those of a worker process."""
        others = dict(zip((run.name for run in list(self.folders)[1:]), services[1:], strict=True))
        return uvicorn.Config(
            build_app(
                services[0],
                self.write_access,
                limits=self.limits,
                allow_origins=self.allow_origins,
                others=others,
                places=places,
            ),
            http=connection_class(self.limits),
            ws="none",
            log_level="error",  # its warnings tell of clients' mistakes, one line for each
            access_log=False,
            server_header=False,
            headers=[("X-Worker", str(worker))] if places else [],
            timeout_keep_alive=30,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
