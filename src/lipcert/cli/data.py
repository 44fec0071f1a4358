"""lipcert data: which images there are, and how to get them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lipcert.cli.completion import archive_names
from lipcert.cli.console import help_without_command, print_json, print_table, progress, say
from lipcert.cli.help import App
from lipcert.cli.options import Json
from lipcert.errors import choose

data_app = App(help="Images: what there is, and how to get it.")
data_app.callback(invoke_without_command=True)(help_without_command)

Root = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of the datasets; default: $LIPCERT_DATA, or ~/.cache/lipcert."),
]


@data_app.command("list")
def list_data(root: Root = None, as_json: Json = False) -> None:
    """List the datasets that lipcert knows by name, and whether they are on this machine.

    Examples:

    lipcert data list

    lipcert data list --data-root /datasets --json
    """
    from lipcert.data.archives import ARCHIVES, data_root

    home = data_root(root)
    rows: list[dict[str, Any]] = [
        {
            "name": "digits",
            "images": "1,797 grey, 8x8",
            "classes": 10,
            "here": True,
            "where": "inside scikit-learn",
        }
    ]
    for name, archive in ARCHIVES.items():
        folder = home / archive.folder
        rows.append(
            {
                "name": name,
                "images": "60,000 colour, 32x32",
                "classes": 10 if name == "cifar10" else 100,
                "here": all((folder / file).is_file() for file in archive.files),
                "where": str(folder),
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        "Datasets",
        ["Name", "Images", "Classes", "Here", "Where"],
        [
            [row["name"], row["images"], str(row["classes"]), "yes" if row["here"] else "no", row["where"]]
            for row in rows
        ],
    )
    if missing := [row["name"] for row in rows if not row["here"]]:
        say(f"To get one: lipcert data download {missing[0]}")
    say("Your own images: --data FOLDER, with one subfolder of PNG, JPEG or WebP files per class.")


@data_app.command("download")
def download_data(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cifar10 or cifar100.", autocompletion=archive_names)
    ],
    root: Root = None,
    url: Annotated[str | None, typer.Option("--url", help="A mirror of the same archive.")] = None,
) -> None:
    """Download a public dataset, check its hash and unpack it; a broken download goes on where it stopped.

    Examples:

    lipcert data download cifar10

    lipcert data download cifar100 --data-root /datasets --url http://mirror/cifar-100-python.tar.gz
    """
    from lipcert.data import ARCHIVES, download

    choose("NAME", name, ARCHIVES)
    with progress(f"{name}: downloading what is missing") as advance:
        folder = download(name, root, url=url, progress=advance)
    say(f"{name} is in {folder}")
