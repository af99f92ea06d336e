"""moto's S3 as a process: `python -m tests.system.remote.s3_server PORT BUCKET`.

S3 decides conditional writes one after the other. moto looks first and writes then, in as many threads as there are
requests: so requests that write come in one at a time here.
"""

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

WRITES = {"PUT", "POST", "DELETE"}


def one_at_a_time(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    lock = threading.Lock()

    def serve(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in WRITES:
            return application(environ, start)
        environ["wsgi.input"] = _read(environ)  # not under the lock: a client may be slow
        with lock:
            answer = application(environ, start)
            try:
                return list(answer)
            finally:
                if hasattr(answer, "close"):
                    answer.close()

    return serve


def _read(environ: dict[str, Any]) -> Any:
    length = environ.get("CONTENT_LENGTH")
    if length:
        return io.BytesIO(environ["wsgi.input"].read(int(length)))
    return environ["wsgi.input"]  # chunked, or empty


def main(port: int, bucket: str) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    s3_backends["123456789012"]["aws"].create_bucket(bucket, "us-east-1")
    MotoRequestHandler.disable_nagle_algorithm = True  # else head and body of an answer are 40 ms apart
    application = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
