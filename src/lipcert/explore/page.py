"""Layout and event handlers of the page. All answers come from `Session`."""

import os
from typing import TYPE_CHECKING, Any

from lipcert.errors import import_extra
from lipcert.explore.choices import ANY_CLASS, ORDERS, SORTED_IMAGES
from lipcert.explore.panel import asset
from lipcert.explore.session import THUMBNAILS, Session, message

if TYPE_CHECKING:
    import gradio

SYSTEM_FONTS = ("ui-sans-serif", "system-ui", "Segoe UI", "Roboto", "Noto Sans", "DejaVu Sans", "sans-serif")
MONO_FONTS = ("ui-monospace", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


def need_gradio() -> None:
    """Import gradio, with its analytics turned off.

    Raises:
        ArgumentError: it is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import_extra("gradio", "explore", "explore")


def looks() -> dict[str, Any]:
    """Theme, style and script for `launch`; nothing is loaded from the internet."""
    need_gradio()
    import gradio as gr

    theme = gr.themes.Base(primary_hue="blue", font=SYSTEM_FONTS, font_mono=MONO_FONTS)
    return {"theme": theme, "css": asset("style.css"), "head": asset("script.html")}


def build_page(session: Session, network: str) -> "gradio.Blocks":
    """Lay the page out.

    Args:
        session: answers the clicks.
        network: its name, for the heading.
    """
    need_gradio()
    import gradio as gr

    images = session.choices.images
    page = gr.Blocks(title=f"{network} · lipcert", analytics_enabled=False, fill_width=True)
    with page:
        gr.HTML(_heading(network, images.name), elem_id="lc-head")
        indices, start = gr.State([]), gr.State(0)
        with gr.Row():
            with gr.Column(scale=2, min_width=260):
                with gr.Row():
                    order = gr.Dropdown(ORDERS, value=ORDERS[0], label="Show", elem_id="lc-order")
                    classes = gr.Dropdown(
                        session.choices.classes, value=ANY_CLASS, label="True class", elem_id="lc-class"
                    )
                gallery = gr.Gallery(
                    label="Test images",
                    show_label=False,
                    columns=6,
                    height="auto",
                    allow_preview=False,
                    buttons=[],
                    format="png",
                    object_fit="contain",
                    elem_id="lc-gallery",
                    interactive=False,
                )
                with gr.Row():
                    index = gr.Number(
                        label=f"Index, 0 to {len(images) - 1}", precision=None, elem_id="lc-index"
                    )
                    more = gr.Button("More images", elem_id="lc-more")
                file = gr.File(label="Drop a picture of your own", height=170, elem_id="lc-file")
            with gr.Column(scale=5, min_width=420):
                notice = gr.HTML("", elem_id="lc-message")
                panel = gr.HTML("", elem_id="lc-panel")

        # A message leaves the panel as it was, so that an unreadable file does not clear the page.
        def answer(found: tuple[str, str]) -> dict[Any, Any]:
            html, sentence = found
            return {panel: html, notice: ""} if html else {notice: sentence}

        def choose(kind: str, class_name: str) -> dict[Any, Any]:
            rows = session.choices.pick(kind, class_name)
            shown = gr.Gallery(value=session.thumbnails(rows[:THUMBNAILS]), selected_index=None)
            result = {indices: rows, start: 0, gallery: shown}
            if not rows:
                among = min(SORTED_IMAGES, len(images))
                return {**result, notice: message(f"There is no such image among the first {among:,}.")}
            return {**result, **answer(session.test_image(rows[0]))}

        def turn(rows: list[int], first: int) -> dict[Any, Any]:
            after = first + THUMBNAILS if first + THUMBNAILS < len(rows) else 0
            shown = session.thumbnails(rows[after : after + THUMBNAILS])
            return {start: after, gallery: gr.Gallery(value=shown, selected_index=None)}

        def select(rows: list[int], first: int, event: gr.SelectData) -> dict[Any, Any]:
            chosen = rows[first + int(event.index)]
            return {**answer(session.test_image(chosen)), index: chosen}

        def typed(value: float | None) -> dict[Any, Any]:
            return answer(session.test_image(value))

        def dropped(path: str) -> dict[Any, Any]:
            # The box is emptied again, ready for the next picture.
            return {**answer(session.own_picture(path)), file: None}

        # By default gradio drops a choice that is made while an answer is computed; here the last one wins.
        shared: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "always_last"}
        everything = [indices, start, gallery, panel, notice]
        gr.on(
            [page.load, order.input, classes.input],
            choose, [order, classes], everything, show_progress_on=panel, **shared,
        )  # fmt: skip
        more.click(turn, [indices, start], [start, gallery], **shared)
        gallery.select(select, [indices, start], [panel, notice, index], show_progress_on=panel, **shared)
        index.submit(typed, [index], [panel, notice], show_progress_on=panel, **shared)
        file.upload(dropped, [file], [panel, notice, file], show_progress_on=panel, **shared)
    return page


def _heading(network: str, data: str) -> str:
    from html import escape

    return (
        f"<h1>{escape(network)} on {escape(data)}</h1><p>Choose an image: how far may it change before the "
        "prediction can, and how near does an attack come? Distances are l2, in pixel units: a pixel goes "
        "from 0 to 1.</p>"
    )
