"""Read records from Parquet and Arrow files. The only importer of pyarrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc, parquet

from jaxtie.config import UserError
from jaxtie.text.data.cache import in_one_line

RECORDS_AT_A_TIME = 1024


def read_arrow(path: Path, field: str, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each record of a `.parquet` or `.arrow` file.

    Other fields than `field` are read for the first record only.

    Raises:
      UserError: if it is damaged, or has two columns of that name.
    """
    try:
        with pa.OSFile(str(path)) as file:
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            if kind == ".parquet":
                opened = parquet.ParquetFile(file)
                names = opened.schema_arrow.names
                columns = [field] if field in names else None
                batches = opened.iter_batches(RECORDS_AT_A_TIME, columns=columns)
            elif is_file:
                opened = ipc.open_file(file)
                batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
            else:  # as the library `datasets` writes it
                batches = iter(ipc.open_stream(file))
            count = 0
            for batch in batches:
                if (columns := batch.schema.names.count(field)) > 1:
                    raise UserError(f"{path}: has {columns} columns {field!r}; rename all but one")
                own = batch.select([field]) if field in batch.schema.names else batch
                for record in own.to_pylist():
                    count += 1
                    yield f"record {count:,}", record
    except UserError:  # a ValueError
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as {kind} ({in_one_line(error)})") from error
