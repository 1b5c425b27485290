"""The command `bench` is an entry point of the package's own wheel; what it does is tested with the
program, in tests/interfaces/test_cli.py."""

from transduct.added import added
from transduct_bench.command import bench


def test_it_is_the_command_that_is_installed():
    assert added("commands")["bench"].load() is bench
