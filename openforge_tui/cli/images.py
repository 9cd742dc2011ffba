"""`openforge images`: what was built for pods, and what can go."""

from typing import Annotated

import typer

from openforge_tui.cli import output, settings

images_app = typer.Typer(no_args_is_help=True, help="List, build and remove the images of sandboxes.")


def register(app: typer.Typer) -> None:
    app.add_typer(images_app, name="images")


@images_app.command("ls")
def list_images() -> None:
    """List images, newest first: what for, whether `prune` would take it, how big and old, of how many packages."""
    from cluster import docker, images
    from cluster.task_image import wanted_images

    docker.require()
    wanted = wanted_images(settings.current().load().config.run, settings.current().project)
    rows = [
        {
            "image": image.name,
            "kind": image.kind,
            "old": images.is_old(image, wanted),
            "size_mb": round(image.size_bytes / 1e6),
            "age": images.age(image.created),
            "packages": len(image.versions.split()),
        }
        for image in images.list_images()
    ]
    output.emit(rows, ["image", "kind", "old", "size_mb", "age", "packages"])


@images_app.command()
def show(name: Annotated[str, typer.Argument(help="An image, as `images ls` names it.")]) -> None:
    """List the packages of an image with their versions, as its label keeps them."""
    from cluster import docker, images
    from openforge.errors import UsageError

    docker.require()
    found = [image for image in images.list_images() if image.name == name]
    if not found:
        raise UsageError(f"there is no image {name!r} of ours", hint="openforge images ls")
    pairs = [entry.partition("=") for entry in found[0].versions.split()]
    output.emit([{"package": package, "version": version} for package, _, version in pairs], ["package", "version"])


@images_app.command()
def build() -> None:
    """Build the images of the run's harnesses, and of its tasks that bring their own; those that are there stay.

    Of a target of kind "kubernetes" all that its nodes must have where there is no registry.
    """
    from cluster import docker, images
    from cluster.task_image import run_images

    docker.require()
    config = settings.current().load().config
    rows: list[dict[str, object]] = []
    if config.target.kind == "kubernetes":
        rows += [{"image": ensure(output.say)} for ensure in (images.ensure_sandbox, images.ensure_recorder)]
    made = run_images(config.run, settings.current().project, output.say)
    rows += [{"task": task and task.ref, "harness": harness, "image": image} for task, harness, image in made]
    output.emit(rows, ["task", "harness", "image"])


@images_app.command()
def prune() -> None:
    """Remove images that this version does not use any more, and those of tasks that the run does not name."""
    from cluster import docker, images
    from cluster.task_image import wanted_images

    docker.require()
    wanted = wanted_images(settings.current().load().config.run, settings.current().project)
    gone = images.remove_old(wanted, output.say)
    output.emit([{"image": name} for name in gone], ["image"])
    output.say(f"{len(gone)} images removed")
