"""Every family on another device than the CPU: a GPU or, where there is none, one that only
pretends. Its tensors are computed on the CPU and say that they are elsewhere, so that whatever
mixes devices fails as it does on a GPU.

`python -m tests.elsewhere [FAMILY..]` trains families there, resumes and asks their models. It is a
process of its own, for a device once registered stays. With `--broken` the lengths of sequences
stay on the CPU.
"""

import sys
import tempfile
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

# it hides from Python what `to` is made of; read where functions are decorated
if not torch.cuda.is_available():
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else torch.enable_grad()

from tests.families import RECIPES, in_folder
from tests.tasks.test_families import inputs_of
from transduct import devices
from transduct.predictors import base as predictors_base
from transduct.runs import train
from transduct.segments import Segments

NAME = "elsewhere"
devices.ACCELERATORS.append(NAME)
DEVICE = "cuda:0" if torch.cuda.is_available() else f"{NAME}:0"
# a GPU takes indices from the CPU
TAKEN_ALONG = ("copy_", "_to_copy", "index", "index_put_", "_index_put_impl_")
LIBRARY = torch.library.Library("aten", "IMPL")


class Backend(backend_registration._DummyBackendModule):
    """What PyTorch asks a device's module for."""

    def get_amp_supported_dtype(self):
        return [torch.bfloat16]


class Elsewhere(torch.Tensor):
    """A tensor of that device, and where its numbers really are."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held):
        like = {
            "dtype": held.dtype,
            "device": torch.device(NAME, 0),
            "storage_offset": held.storage_offset(),
        }
        return torch.Tensor._make_wrapper_subclass(cls, held.size(), strides=held.stride(), **like)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return computed(operator, args, kwargs or {})

    def tolist(self):
        return self.held.tolist()


class Watched(TorchDispatchMode):
    """Operators that make tensors from nothing come by here."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return computed(operator, args, kwargs or {})


def held(tree):
    """Where the numbers of tensors really are. By hand, since PyTorch's trees take longer than the
    operators."""
    if type(tree) is Elsewhere:
        return tree.held
    if type(tree) in (tuple, list):
        return type(tree)(map(held, tree))
    return {key: held(part) for key, part in tree.items()} if type(tree) is dict else tree


def tensors_in(tree):
    """The tensors among arguments."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif type(tree) in (tuple, list, dict):
        for part in tree.values() if type(tree) is dict else tree:
            yield from tensors_in(part)


def computed(operator, args, kwargs):
    """The operator on the CPU, its outputs where its inputs were or where it was told to put
    them."""
    tensors = [*tensors_in((args, kwargs))]
    there = [x for x in tensors if isinstance(x, Elsewhere)]
    here = [x for x in tensors if not isinstance(x, Elsewhere) and x.ndim]  # a number goes anywhere
    name = operator._schema.name.removeprefix("aten::")
    if there and here and name not in TAKEN_ALONG:
        raise RuntimeError(f"{name} of two devices: {tuple(here[0].shape)} is on the CPU")
    device = kwargs.get("device")
    stays = args[0].device.type == "cpu" if name == "copy_" else not there
    if device is not None:
        stays, kwargs = (
            torch.device(device).type == "cpu",
            {**kwargs, "device": torch.device("cpu")},
        )
    output = operator(*held(args), **held(kwargs))
    if name == "_to_copy" and output is held(args[0]):
        output = output.clone()
    if stays:
        return output
    same = {id(held(x)): x for x in there}  # what is written in place

    def elsewhere(x):
        return same[id(x)] if id(x) in same else Elsewhere(x)

    plain = isinstance(output, torch.Tensor)
    wrapped = elsewhere(output) if plain else tree_map_only(torch.Tensor, elsewhere, output)
    return (
        return_and_correct_aliasing(operator, args, kwargs, wrapped)
        if aliases(operator)
        else wrapped
    )


@cache
def aliases(operator):
    """Whether it returns an argument or a view of one."""
    return any(each.alias_info is not None for each in operator._schema.returns)


def register() -> None:
    """Make the device known, and do for its C++ side what does not come by Python."""

    def empty_strided(size, stride, dtype=None, **_):
        return Elsewhere(torch.empty_strided(size, stride, dtype=dtype))

    def copy(into, source, non_blocking=False):
        held(into).copy_(held(source))
        return into

    backend_registration._setup_privateuseone_for_python_backend(NAME, Backend())
    LIBRARY.impl("empty_strided", empty_strided, "PrivateUse1")
    LIBRARY.impl("copy_", copy, "PrivateUse1")
    torch.__future__.set_swap_module_params_on_conversion(True)  # else shared weights become two
    make = torch.tensor
    # this hides it too
    torch.tensor = lambda data, device=None, **kwargs: make(data, **kwargs).to(device or "cpu")


def use(name: str, folder: Path) -> None:
    """Train a family there, resume, and ask the model what it can be asked."""
    recipe = in_folder(RECIPES[name], folder)
    training = {
        **recipe.training,
        "steps": 3,
        "validate_every": 3,
        "checkpoint_every": 1,
        "average": 1,  # each number of checkpoints would be validated
        "device": DEVICE,
    }
    recipe, run, inputs = replace(recipe, training=training), folder / "run", inputs_of(recipe)
    train.train(recipe, run, notify=str)
    with suppress(Stopped):
        train.train(recipe, folder / "again", notify=str, report=stop)
    train.train(recipe, folder / "again", resume=True, notify=str)
    kept, again = (place / "model" / "model.safetensors" for place in (run, folder / "again"))
    assert kept.read_bytes() == again.read_bytes(), "resumed"
    for precision in ("float32", "bfloat16"):
        model = predictors_base.load(run, DEVICE, precision)
        model.predict(inputs)
        if hasattr(model, "translate"):
            model.translate(inputs, beam=1, temperature=0.8)
            model.score(inputs, inputs)
        if hasattr(model, "attention") and name != "rnn without attention":
            model.attention(inputs[0])


class Stopped(Exception):
    pass


def stop(event: dict) -> None:
    """End a run in its middle, after a checkpoint."""
    if event["step"] == 2 and "loss" in event:
        raise Stopped


def main(names: list[str], broken: bool) -> None:
    pretend = not torch.cuda.is_available()
    if pretend:
        register()
    if broken:
        Segments.to = lambda segments, device: segments
    for name in names:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder, Watched() if pretend else nullcontext():
            use(name, Path(folder))


if __name__ == "__main__":
    main(
        [name for name in sys.argv[1:] if name != "--broken"] or list(RECIPES),
        "--broken" in sys.argv,
    )
