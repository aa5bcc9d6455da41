"""Send thousands of unusual requests to a running server, generated from its OpenAPI schema.

schemathesis needs a separate environment:

    python -m venv fuzz && fuzz/bin/pip install schemathesis
    paceline serve demo --port 8001 --max-length 64 --max-body 64 &
    fuzz/bin/python scripts/fuzz_server.py http://127.0.0.1:8001 --examples 1000

The exit status is 0 if all responses meet these conditions: no status of 500 or above except 503
and 504, a body that matches the schema, and a time below `--seconds`. Afterwards, the server must
have no open request.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance"
)
_FAILED = re.compile(r'http_requests_total\{.*status="(0|5\d\d)"\} ([1-9]\S*)')


def main() -> int:
    options = _options()
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{options.url}/openapi.json",
        "--url",
        options.url,
        "--checks",
        CHECKS,
        "--max-examples",
        str(options.examples),
        "--seed",
        str(options.seed),
        "--mode",
        "all",
        "--wait-for-schema",
        "120",
        "--request-timeout",
        str(options.seconds),
        "--continue-on-failure",
        "--phases",
        "examples,coverage,fuzzing",
        "--generation-database",
        "none",
        "--suppress-health-check",
        "all",
        "--workers",
        str(options.workers),
    ]
    if options.key:
        command += ["--header", f"Authorization: Bearer {options.key}"]
    status = subprocess.run(command, check=False).returncode
    return status or _left_over(options.url)


def _left_over(url: str) -> int:
    """Check the server's state afterwards; return 1 if anything is open."""
    time.sleep(2)
    health = json.loads(_read(f"{url}/health"))
    failed = [found.group() for found in _FAILED.finditer(_read(f"{url}/metrics"))]
    print(f"open: {health['open']}; answers that failed: {failed or 'none'}")
    return int(bool(health["open"] or failed))


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("url", help="of the server, such as http://127.0.0.1:8001")
    parser.add_argument(
        "--examples",
        type=int,
        default=1000,
        help="requests for each endpoint and way of making them",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="requests at a time")
    parser.add_argument("--seconds", type=float, default=30.0, help="that an answer may take")
    parser.add_argument("--key", default="", help="of the server")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
