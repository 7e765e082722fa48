"""Let the launcher make the tensor maps of descriptors that a kernel makes itself.

Such a descriptor is one that the launch could have passed, if its address is a pointer argument and
its extents and strides are sums of products of arguments: then it becomes a parameter, and the
launcher describes the tensor. The condition that it can be encoded (strides in multiples of 16
bytes, no empty axis) is the launch's to check, as for what is loaded through pointers.

Invariant: a descriptor becomes a parameter only if its tensor is the same for all programs.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, ParamInfo, TensorSource, Value
from aotc.ir.dialects.descriptor import DescriptorOf
from aotc.ir.types import DescriptorType
from aotc.schedule.affine import AffineAnalysis
from aotc.schedule.context import Schedule
from aotc.schedule.launch_text import LaunchText


def map_made(kernel: Kernel, made: list[DescriptorOf], schedule: Schedule) -> None:
    """Replace descriptors made of launch arguments by parameters; say why others are not."""
    analysis = AffineAnalysis(kernel)
    text = LaunchText(kernel, analysis)
    known: dict[tuple[TensorSource, DescriptorType], Value] = {}
    for op in made:
        source, kind = _source_of(op, kernel, analysis, text), op.out.type
        assert isinstance(kind, DescriptorType)
        if isinstance(source, str):
            schedule.remark(op.loc, f"blocks of this tensor go through pointers: {source}")
            continue
        if (source, kind) not in known:
            own = sum(each.address == source.address for each, _ in known)
            name = f"{source.address}.tensor{own or ''}"
            known[source, kind] = kernel.body.add_arg(kind, name)
            kernel.params += (ParamInfo(name, tensor=source),)
        op.replace_with([known[source, kind]])


def _source_of(
    op: DescriptorOf, kernel: Kernel, analysis: AffineAnalysis, text: LaunchText
) -> TensorSource | str:
    """Return what tensor a launch would describe, or why it cannot know."""
    address = analysis[op.pointer]
    if address.base is None or address.base.owner is not kernel.body or address.offset:
        return "it does not begin where a pointer argument points"
    sizes = [analysis[size].offset for size in op.sizes]
    if not all(analysis.is_launch(symbol) for size in sizes for symbol in size.symbols):
        return "its extents and strides are not computed of arguments alone"
    rank = len(op.shape)
    texts = tuple(map(text.of, sizes))
    name = kernel.params[address.base.index].name
    return TensorSource(name, texts[:rank], texts[rank:])
