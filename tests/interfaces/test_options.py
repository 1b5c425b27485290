"""Options that commands share are declared once, and each is an option of some command."""

import typer

from transduct.interfaces import cli, options

RECORDS = (
    options.NO_LANGUAGES,
    options.ANY_MACHINE,
    options.USUAL_SEARCH,
    options.ONE_FILE,
    options.USUAL_OPERATION,
)


def test_every_option_of_a_record_has_help_and_the_record_s_default_in_its_commands():
    commands = typer.main.get_command(cli.app).commands.values()
    for record in RECORDS:
        for name, default in vars(record).items():
            found = [each for command in commands for each in command.params if each.name == name]
            assert found, name
            assert all(each.help for each in found), name
            assert any(each.default == default for each in found), name
