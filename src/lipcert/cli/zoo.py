"""lipcert zoo: the networks that ship with the package."""

from typing import Annotated, Any

import typer

from lipcert import zoo
from lipcert.cli.console import help_without_command, print_json, print_table, say
from lipcert.cli.help import App
from lipcert.cli.options import Json
from lipcert.errors import choose

RADII = ("36/255", "72/255", "108/255")
zoo_app = App(help="Networks that ship with lipcert.")
zoo_app.callback(invoke_without_command=True)(help_without_command)


@zoo_app.command("list")
def list_zoo(
    as_json: Json = False,
) -> None:
    """List the networks that can be used at once, by name.

    Examples:

    lipcert zoo list

    lipcert zoo list --json
    """
    rows: list[dict[str, Any]] = [
        {"name": name, "megabytes": file.stat().st_size / 1e6, "card": zoo.card(name)}
        for name, file in zoo.proved_networks().items()
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        "Networks that ship with lipcert",
        ["Name", "MB", "Standard", *RADII],
        [[row["name"], f"{row['megabytes']:.1f}", *_shares(row["card"])] for row in rows],
        numbers=5,
    )
    say("Right, and right and certified, on the test images. More: lipcert zoo show NAME")
    say(f"Try one: lipcert certify {rows[0]['name']} --images my.png")


@zoo_app.command("show")
def show_zoo(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A network of lipcert zoo list.")],
    as_json: Json = False,
) -> None:
    """Show the card of a network: what is proved of it, how it was trained, what the attacks found.

    Examples:

    lipcert zoo show lipconvnet5-cifar10

    lipcert zoo show lipconvnet5-cifar10 --json
    """
    from lipcert.certify.curve import shown, shown_bound

    known = zoo.proved_networks()
    file = known[choose("zoo", name, known)]
    card = zoo.card(name)
    if as_json:
        print_json(card)
        return
    training, audit = card["training"], card["audit"]
    rows = [
        ["network", card["network"]],
        ["trained and tested on", f"{card['data']}, {card['test_images']} test images"],
        ["standard accuracy", f"{card['standard']:.2%}"],
        *([f"certified at {radius}", f"{share:.2%}"] for radius, share in card["certified"].items()),
        *([["the paper", " / ".join(f"{number}%" for number in card["paper"])]] if card["paper"] else []),
        [f"before {_changes(card)}", " / ".join(_shares(card["before_rounding"]))],
        ["median radius", f"{shown(card['median_radius'])}, a wrong prediction counting as 0"],
        ["proved Lipschitz constant", f"{shown_bound(card['lipschitz'], 7)} from pixels to features"],
        *_trainings(training),
        ["audit", _verdict(audit)],
        ["proved file", f"sha256 {card['network_sha256'][:16]}..., {file.stat().st_size / 1e6:.1f} MB"],
    ]
    print_table(name, ["", ""], rows)


def _shares(card: dict[str, Any]) -> list[str]:
    return [f"{share:.2%}" for share in (card["standard"], *card["certified"].values())]


def _changes(card: dict[str, Any]) -> str:
    """What was done to the network of the run before it was proved."""
    done = ["rounding to bfloat16"]
    done += ["averaging"] if "averaged_with" in card["training"] else []
    done += ["mirroring"] if card.get("mirrored") and not card["training"].get("mirrored") else []
    return " and ".join(done)


def _trainings(training: dict[str, Any], label: str = "training") -> list[list[str]]:
    """Rows on the training of a network, and of the one that it is averaged with, if any."""
    other = training.get("averaged_with")
    return [
        [label, f"{training['budget']}; gamma {training['gamma']:g}, seed {training['seed']}"],
        ["", f"{_hours(training)} hours ({training['cpu']}, threads: {training['threads']})"],
        *([] if other is None else _trainings(other, "averaged with")),
    ]


def _hours(training: dict[str, Any]) -> str:
    """Those of the network that it started from, if any, and its own."""
    before = training.get("started_from")
    own = f"{training['hours']:.1f}"
    return own if before is None else f"{before['hours']:.1f} + {own}"


def _verdict(audit: dict[str, Any] | None) -> str:
    if audit is None:
        return "not attacked yet"
    return (
        f"{audit['broken']} of {audit['certified']} certificates broken by {len(audit['attacks'])} attacks; "
        f"nearest change found at {audit['ratio']['smallest']:.3f} times its radius"
    )
