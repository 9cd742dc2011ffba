"""`openforge images`: what was built for pods, and what can go."""

from typing import Annotated

import typer

from openforge_tui.cli import output, settings

images_app = typer.Typer(no_args_is_help=True, help="List, build and remove the images of sandboxes.")


def register(app: typer.Typer) -> None:
    app.add_typer(images_app, name="images")


@images_app.command("ls")
def list_images() -> None:
    """List images, newest first: what for, how big, how old, of how many pinned packages."""
    from cluster import docker, images

    docker.require()
    rows = [
        {
            "image": image.name,
            "kind": image.kind,
            "size_mb": round(image.size_bytes / 1e6),
            "age": images.age(image.created),
            "packages": len(image.versions.split()),
        }
        for image in images.list_images()
    ]
    output.emit(rows, ["image", "kind", "size_mb", "age", "packages"])


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
    from cluster.node_image import build
    from cluster.task_image import own_name, task_name
    from openforge.harness import harness_roots, list_harnesses, load_harness
    from openforge.task import load_tasks

    docker.require()
    roots = harness_roots(settings.current().project)
    harnesses = [load_harness(name, roots) for name in list_harnesses(roots)]
    keep = [build.node_image(), images.sandbox_name(), images.recorder_name()]
    keep += [images.harness_name(harness) for harness in harnesses]
    own = [task for task in load_tasks(settings.current().load().config.run.tasks) if task.dockerfile]
    keep += [own_name(task) for task in own]
    keep += [task_name(task, harness) for task in own for harness in harnesses]
    gone = images.remove_old(keep, output.say)
    output.emit([{"image": name} for name in gone], ["image"])
    output.say(f"{len(gone)} images removed")
