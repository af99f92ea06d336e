"""A pipeline of Beam in a process of its own, which a test can give up: REPOSITORY FLAG PLACE OPTIONS."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam
from apache_beam.options.pipeline_options import PipelineOptions

import txstore
from tests.engines import jobs


class Work(apache_beam.DoFn):  # type: ignore[misc]
    def __init__(self, store: Any, flag: Path, place: str) -> None:
        self.store, self.flag, self.place = store, flag, place

    def process(self, part: int) -> Iterator[int]:
        if self.place == "fails":
            yield jobs.fail(self.store, part)
        else:
            yield jobs.work(self.store, part, self.flag, self.place)


def main(url: str, flag: str, place: str, *options: str) -> None:
    told = ["--runner=DirectRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2", *options]
    with (
        txstore.Repository(url).transaction("by Beam") as store,
        apache_beam.Pipeline(options=PipelineOptions(told)) as pipeline,
    ):
        parts = pipeline | apache_beam.Create(range(jobs.PARTS)) | apache_beam.Reshuffle()
        _ = parts | apache_beam.ParDo(Work(store, Path(flag), place))


if __name__ == "__main__":
    main(*sys.argv[1:])
