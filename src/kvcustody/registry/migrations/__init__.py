"""Migrations of the registry's tables, run by Alembic in a transaction of ours.

`versions/` has one file for each change. To add one: write the file, change
`kvcustody.registry.schema` alike, and set its `REVISION`. New registries are made from the schema,
older ones by the migrations; a test sees to it that both come to the same.
"""

from functools import cache
from pathlib import Path

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from kvcustody.registry.schema import REVISION

_FIRST = "0001"


@cache
def scripts() -> ScriptDirectory:
    """All migrations."""
    return ScriptDirectory(str(Path(__file__).parent))


def upgrade(connection: Connection, found: str | None, to: str = REVISION) -> str | None:
    """Run the migrations that are missing; why not, if the tables are not ours to change.

    Args:
        connection: in a transaction that no other process is in.
        found: the migration that the tables are at; `None` if Alembic never ran.
        to: the migration to end with.

    """
    directory = scripts()
    known = {script.revision for script in directory.walk_revisions()}
    if found is not None and found not in known:
        return _made_by_a_newer_version(found)
    context = MigrationContext.configure(connection)
    if found is None:
        names = set(inspect(connection).get_table_names())
        if "schema_version" in names:
            # Made before there were migrations, with the tables of the first one.
            version = connection.scalar(text("SELECT version FROM schema_version"))
            if version != 1:
                return _made_by_a_newer_version(version)
            context.stamp(directory, _FIRST)
            found = _FIRST
        elif names:
            return (
                f"holds tables that are not a registry's ({min(names)}); give the registry a "
                "database of its own"
            )
    missing = list(directory.iterate_revisions(to, found or "base"))
    with Operations.context(context):
        for script in reversed(missing):
            script.module.upgrade()
            context.stamp(directory, script.revision)
    return None


def _made_by_a_newer_version(found: object) -> str:
    return (
        f"a newer kvcustody wrote this registry (schema {found}, this one knows {REVISION}); "
        "upgrade kvcustody"
    )
