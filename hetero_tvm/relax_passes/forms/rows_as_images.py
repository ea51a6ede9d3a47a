"""Functions of elements and parts of channels between convolutions of rows, on the images that those have
become."""

from __future__ import annotations

from typing import Any, NamedTuple

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, is_tensor, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_OPERATORS = (
    "abs add ceil clip cos divide erf exp floor log maximum minimum multiply negative power rsqrt sigmoid "
    "sin sqrt square subtract tanh nn.gelu nn.gelu_tanh nn.leakyrelu nn.relu nn.selu nn.silu nn.softplus"
)


class _Found(NamedTuple):
    call: Call
    shape: tuple[int, ...]
    """Shape of the result, an image with one row."""


class ElementsOfImages(Rule):
    """``f(reshape(image), ...)`` of rows [N, C, W] -> ``reshape(f(image, ...))`` of images [N, C, 1, W].

    A reshape is free, and behind it no convolution sees its activation, no image its layout.
    """

    name = "elements_of_images"
    counted = False
    anchors = tuple(f"relax.{name}" for name in _OPERATORS.split())

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        if not is_tensor(var) or len(shape_of(var)) != 3:
            return None
        batch, channels, width = shape_of(var)
        image = (batch, channels, 1, width)
        tensors = [arg for arg in call.args if is_tensor(arg)]
        if len(tensors) != len(call.args) or any(len(shape_of(arg)) > 3 for arg in tensors):
            return None
        return _Found(call, image) if any(_image(graph, arg, image) is not None for arg in tensors) else None

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        call, image = found
        bind = graph.binder(var, [var])

        def lifted(arg: Expr) -> Expr:
            own = _image(graph, arg, image)
            if own is not None:
                return own
            shape = shape_of(arg)
            shape = (1,) * (3 - len(shape)) + shape if len(shape) else ()
            if not shape:
                return arg
            wanted = (*shape[:2], 1, shape[2])
            array = array_of(graph.value(arg))
            if array is not None:
                return relax.const(array.reshape(wanted), dtype_of(arg))  # of float64 it would be a float32
            return bind(relax.op.reshape(arg, wanted), "image")

        value = bind(relax.Call(call.op, [lifted(arg) for arg in call.args], call.attrs), "elements")
        graph.replace(var, relax.op.reshape(value, shape_of(var)))


class _Split(NamedTuple):
    image: Expr
    sizes: list[int]
    users: list[tuple[Var, int]]
    """Readers of the parts, each with the part's number."""


class ChannelsApart(Rule):
    """``split(x, axis=1)`` of an image, or of the rows that one has become -> slices of the image, which keep
    its layout."""

    name = "channels_apart"
    counted = False
    anchors = ("relax.split",)

    def match(self, graph: Graph, var: Var) -> _Split | None:
        call = graph.value(var)
        x, users = call.args[0], graph.users(var)
        values = [None if user is None else graph.value(user) for user in users]
        if not all(isinstance(value, relax.TupleGetItem) for value in values):
            return None
        shape = shape_of(x)
        if int(call.attrs.axis) % max(len(shape), 1) != 1 or dtype_of(x) != "float32":
            return None
        image = x if len(shape) == 4 else None
        if len(shape) == 3:
            image = _image(graph, x, (*shape[:2], 1, shape[2]))
        if image is None:
            return None
        sizes = [int(field.shape[1]) for field in var.ty.fields]
        return _Split(image, sizes, [(user, v.index) for user, v in zip(users, values, strict=True)])

    def rewrite(self, graph: Graph, var: Var, found: _Split) -> None:
        image, sizes, users = found
        for user, n in users:
            begin = sum(sizes[:n])
            part = relax.op.strided_slice(image, [1], [begin], [begin + sizes[n]], [1])
            if len(shape_of(user)) == 3:
                part = relax.op.reshape(
                    graph.insert_before(user, part, f"{user.name}#part", [var]), shape_of(user)
                )
            graph.replace(user, part, [var])


class ChannelsOfImages(Rule):
    """Slices of channels of rows, and rows joined along their channels -> those of the images."""

    name = "channels_of_images"
    counted = False
    anchors = ("relax.strided_slice", "relax.concat")

    def match(self, graph: Graph, var: Var) -> list[Expr] | None:
        call = graph.value(var)
        if len(shape_of(var)) != 3:
            return None
        operands = [call.args[0]]
        if call.op.name == "relax.concat":
            operands = graph.fields(call.args[0])
            axes = [int(call.attrs.axis)]
        else:
            axes = [int(axis) for axis in call.args[1]]
        if [axis % 3 for axis in axes] != [1]:
            return None
        images = [_image(graph, x, (*shape_of(x)[:2], 1, shape_of(x)[2])) for x in operands]
        return images if images and all(image is not None for image in images) else None

    def rewrite(self, graph: Graph, var: Var, images: list[Expr]) -> None:
        call = graph.value(var)
        if call.op.name == "relax.concat":
            value = relax.op.concat(images, 1)
        else:
            value = relax.op.strided_slice(images[0], [1], *call.args[2:])
        graph.replace(var, relax.op.reshape(graph.binder(var, [var])(value, "channels"), shape_of(var)))


class NormOfImages(Rule):
    """``batch_norm`` of rows that an image has become -> that of the image."""

    name = "norm_of_images"
    counted = False
    anchors = ("relax.nn.batch_norm",)

    def match(self, graph: Graph, var: Var) -> tuple[Expr, Var] | None:
        """The image, and the only result that is used."""
        call, user = graph.value(var), graph.only_result(var)
        if user is None or int(call.attrs.axis) != 1:
            return None
        shape = shape_of(user)
        image = _image(graph, call.args[0], (*shape[:2], 1, *shape[2:])) if len(shape) == 3 else None
        return None if image is None else (image, user)

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, Var]) -> None:
        call, (image, user) = graph.value(var), found
        bind = graph.binder(user, [var])
        whole = bind(relax.Call(call.op, [image, *call.args[1:]], call.attrs), "norm")
        normalized = bind(relax.TupleGetItem(whole, 0), "normalized")
        graph.replace(user, relax.op.reshape(normalized, shape_of(user)), [var])


class ChannelsOfRows(Rule):
    """``max`` or ``mean`` over all of a channel of rows that an image has become -> pooling of the image."""

    name = "channels_of_rows"
    counted = False
    anchors = ("relax.max", "relax.mean")

    def match(self, graph: Graph, var: Var) -> Expr | None:
        call = graph.value(var)
        x, axes = call.args[0], call.attrs.axis
        shape = shape_of(x)
        if len(shape) != 3 or axes is None or [int(axis) % 3 for axis in axes] != [2]:
            return None
        image = _image(graph, x, (*shape[:2], 1, shape[2]))
        return image if dtype_of(x) == "float32" and 0 not in shape else None

    def rewrite(self, graph: Graph, var: Var, image: Expr) -> None:
        if graph.op_name(var) == "relax.max":
            size = shape_of(image)[2:]
            pooled = relax.op.nn.max_pool2d(image, size, size)
        else:
            pooled = relax.op.mean(image, [2, 3], keepdims=True)
        graph.replace(var, relax.op.reshape(graph.binder(var, [var])(pooled, "channels"), shape_of(var)))


class RowsAsImages(Rule):
    """Rules of rows in one pass over the graph, as what one leaves is what the others begin from."""

    name = "rows_as_images"
    counted = False
    rules = (ElementsOfImages(), ChannelsApart(), ChannelsOfImages(), NormOfImages(), ChannelsOfRows())
    anchors = tuple(anchor for rule in rules for anchor in rule.anchors)

    def match(self, graph: Graph, var: Var) -> tuple[Rule, Any] | None:
        rule = next(rule for rule in self.rules if graph.op_name(var) in rule.anchors)
        found = rule.match(graph, var)
        return None if found is None else (rule, found)

    def rewrite(self, graph: Graph, var: Var, found: tuple[Rule, Any]) -> None:
        found[0].rewrite(graph, var, found[1])


def _image(graph: Graph, arg: Expr, image: tuple[int, ...]) -> Expr | None:
    """The image that ``arg`` is the rows of."""
    call = graph.call(arg, "relax.reshape")
    return call.args[0] if call is not None and shape_of(call.args[0]) == image else None
