"""Reading a record: a foreign, damaged or edited file is refused with its reason."""

import json
import stat
from pathlib import Path

from pydantic import ValidationError

from benchmark.digests import SEAL, is_whole
from benchmark.errors import DataError, UsageError
from benchmark.records.record import RunRecord

SCHEMA = 2
MAX_BYTES = 20_000_000
"""Ten times a record of 200 classes in 11 sessions."""


class DamagedRecordError(DataError):
    """A record that does not say what was once written."""


def read_record(path: Path) -> RunRecord:
    """A record from its file; a foreign, damaged or edited one is refused with its reason."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
            raise UsageError(f"{path} is not a run record: it is no regular file, or too large")
        document = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DamagedRecordError(f"{path} is not a run record: {error}") from None
    if not isinstance(document, dict):
        raise DamagedRecordError(f"{path} is not a run record: it holds no keys and values")
    if SEAL in document and not is_whole(document):
        raise DamagedRecordError(f"{path} is damaged or was edited: its content does not fit its seal")
    if document.get("schema") != SCHEMA or SEAL not in document:
        found = document.get("schema")
        known = f"its schema is {found}" if isinstance(found, int) and found != SCHEMA else "it is not sealed"
        raise UsageError(f"{path} is not a run record of today: {known}, this version reads {SCHEMA}; run it again")
    try:
        record = RunRecord.model_validate({key: value for key, value in document.items() if key != SEAL})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise UsageError(f"{path} is not a run record: {where}: {first['msg']}") from None
    if record.key != record.question.key:
        raise UsageError(f"{path} is not a run record: its key does not match its question")
    return record


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
