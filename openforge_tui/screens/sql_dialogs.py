"""The boxes of the SQL screen: the views with their columns, a chart."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, Static, Tree

from openforge.store.schema import VIEWS
from openforge_tui.chart import Bars, Line
from openforge_tui.widgets.plot import Plot, Series


class ColumnsScreen(ModalScreen[str | None]):
    """What can be asked; the name that is chosen goes into the query."""

    BINDINGS: ClassVar = [Binding("escape,f8,q", "dismiss(None)", "leave"), Binding("space", "open", "open")]
    DEFAULT_CSS = """
    ColumnsScreen .dialog { width: 95%; height: 90%; }
    ColumnsScreen Tree { height: 1fr; background: $surface; padding: 0; overflow-x: hidden; }
    ColumnsScreen #whole { height: 3; border-top: solid $panel; color: $text-muted; }
    """

    def compose(self) -> ComposeResult:
        tree: Tree[tuple[str, str]] = Tree("views")
        tree.show_root = False
        tree.guide_depth = 2
        tree.auto_expand = False
        wide = max(len(view.name) for view in VIEWS)
        for view in VIEWS:
            node = tree.root.add(
                Text(f"{view.name:<{wide}}", "bold").append(f"  {view.doc}", "not bold dim"), (view.name, view.doc)
            )
            for column in view.columns:
                label = Text(column.name).append(f"  {_short(column.type)}", "cyan").append(f"  {column.doc}", "dim")
                node.add_leaf(label, (column.name, f"{column.type}  {column.doc}"))
        with Vertical(classes="dialog"):
            yield Label("space opens a view, enter puts a name into the query", markup=False)
            yield tree
            yield Static(id="whole", markup=False)

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[tuple[str, str]]) -> None:
        if event.node.data is not None:  # all of it, for where the tree is too narrow
            self.query_one("#whole", Static).update(": ".join(event.node.data))

    def on_mount(self) -> None:
        self.query_one(Tree).cursor_line = 0

    def on_tree_node_selected(self, event: Tree.NodeSelected[tuple[str, str]]) -> None:
        if event.node.data is not None:
            self.dismiss(event.node.data[0])

    def action_open(self) -> None:
        node = self.query_one(Tree).cursor_node
        if node is not None and node.allow_expand:
            node.toggle()


def _short(type_: str) -> str:
    return type_ if len(type_) <= 12 else f"{type_.partition('(')[0].lower()}[]"


class ChartScreen(ModalScreen[None]):
    """A result of two columns, drawn."""

    BINDINGS: ClassVar = [Binding("escape,q,enter,f6", "dismiss", "close")]
    DEFAULT_CSS = "ChartScreen .dialog { width: 95%; max-width: 100%; height: 90%; }"

    def __init__(self, chart: Bars | Line) -> None:
        super().__init__()
        self._chart = chart

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Plot()

    def on_mount(self) -> None:
        chart, plot = self._chart, self.query_one(Plot)
        if isinstance(chart, Bars):
            plot.show_bars(chart.labels, chart.values, title=chart.title)
        else:
            line = Series(chart.name, chart.xs, chart.ys)
            plot.show_lines([line], title=chart.title, x_title=chart.x_title)
