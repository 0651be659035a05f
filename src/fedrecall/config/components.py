"""Components of a run: build them from a section of a recipe or from a Python object."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from fedrecall.errors import InputError, expectation, nearest, short_repr
from fedrecall.user_code import import_named, note_key

Component = TypeVar("Component")
Parameters = dict[str, inspect.Parameter]

PYTHON = "python"  # the name of a component given as a Python object, which a recipe cannot rebuild
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, eq=False)
class PlainFunction:
    """A user's plain function as a component: the parameters after `arguments` are its options."""

    arguments: ClassVar[tuple[str, ...]] = ()  # those that the program passes

    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def description(self) -> dict[str, Any]:
        """Return a function's name and options, or a callable object's class and state, without addresses."""
        function: Any = self.function
        options = dict(self.options)
        while isinstance(function, partial):
            function, options = function.func, {**function.keywords, **options}
        if hasattr(function, "__qualname__"):
            return {"class": qualified_name(function), "options": plain_values(options)}
        attributes = getattr(function, "__dict__", {}).items()
        state = {key: value for key, value in attributes if not key.startswith("_") and key != "training"}
        if hasattr(function, "named_buffers"):  # a torch module
            state |= dict(function.named_buffers())
        kind = qualified_name(type(function))
        return {"class": kind, "repr": without_address(function), "options": plain_values(state | options)}

    @property
    def name(self) -> str:
        return str(self.description()["class"].rpartition(":")[2])


@dataclass(frozen=True)
class Section(Generic[Component]):
    """The components that one section of a recipe can name. A base with an adapter defines `recipe_section`, so
    that other sections do not take its components for plain functions."""

    key: str  # its name in messages: "objective", "local.optimiser"
    listing: Mapping[str, Callable[..., Component]]
    base: type[Component] | None = None  # the class of its components; None: any object
    supplied: frozenset[str] = frozenset()  # parameters set by the program, not the recipe
    adapter: type[PlainFunction] | None = None  # wraps a user's plain function as a component

    def complete(self, tree: str | Mapping[str, Any]) -> dict[str, Any]:
        """Return the tree with its options checked and missing ones set to their defaults."""
        name, options = self._split(tree)
        if name != PYTHON:
            options = self._checked_options(self._maker(name, options)[1], options)
        return {"name": name, **options}

    def create(self, tree: str | Mapping[str, Any], **supplied: Any) -> Component:
        """Return the component that the tree names."""
        name, given = self._split(tree)
        if name == PYTHON:
            raise InputError(f"{self.key} was given as a Python object; start this run again from Python")
        make, known = self._maker(name, given)
        accepted = signature(make).parameters
        extra = {key: value for key, value in supplied.items() if key in accepted}
        options = self._checked_options(known, given)
        try:
            made = make(**options, **extra)
        except InputError:
            raise
        except Exception as error:
            if ":" in name:
                note_key(error, self.key, name)
            raise
        said = repr(name) if inspect.isclass(make) else f"what {name!r} returned, {short_repr(made)}"
        return self._component(made, said)

    def from_python(self, given: Any) -> Component:
        """Return the component for an instance, a class, a plain function, a name or a tree."""
        if isinstance(given, str | Mapping):
            return self.create(given)
        if not inspect.isclass(given):
            return self._component(given, short_repr(given))
        said = f"the class {given.__name__}"
        if not self._fits(given):
            raise self._refusal(said, given)
        if missing := required(given):
            raise InputError(f"{self.key} is {said}, which needs {', '.join(missing)}; an instance of it was expected")
        return self._component(given(), said)

    def describe(self, component: Any) -> dict[str, Any]:
        """Return a component as a recipe names it, or a user's own as its class and attributes."""
        if isinstance(component, PlainFunction):
            return {"name": PYTHON, **component.description()}
        names = [field.name for field in fields(component)] if is_dataclass(component) else vars(component)
        values = {name: getattr(component, name) for name in names}
        for name, maker in self.listing.items():
            if maker is type(component):
                return {"name": name, **{key: values[key] for key in values if key not in self.supplied}}
        return {"name": PYTHON, "class": qualified_name(type(component)), "options": plain_values(values)}

    def options(self, maker: Callable[..., Any]) -> Parameters:
        """Return the options that a recipe can give to this class or function."""
        return {key: option for key, option in parameters(maker).items() if key not in self.supplied}

    def option_names(self) -> set[str]:
        return {key for maker in self.listing.values() for key in self.options(maker)}

    def _split(self, tree: Any) -> tuple[str, dict[str, Any]]:
        """Return the name and the options of a tree; a name alone stands for a tree without options."""
        options = dict(tree) if isinstance(tree, Mapping) else {"name": tree}
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise InputError(f"{self.key}.name is {short_repr(name)}; a name was expected; {nearest('', self.listing)}")
        return name, options

    def _maker(self, name: str, given: Mapping[str, Any]) -> tuple[Callable[..., Any], Parameters]:
        """Return the class or function that makes the named component, and its options."""
        if name in self.listing:
            return self.listing[name], self.options(self.listing[name])
        if ":" not in name:
            raise InputError(f"{self.key} is {name!r}, which is not known; {nearest(name, self.listing)}")
        found = import_named(self.key, name)
        if self.base is not None and isinstance(found, self.base):
            return lambda: found, {}
        kind: type = found if inspect.isclass(found) else type(found)
        if self.base is not None and (not self._fits(kind) if kind is found else section_of(kind)):
            raise self._refusal(repr(name), kind)
        if self.adapter is not None and kind is not found:
            known = parameters(found)
            first = list(known.values())[: len(self.adapter.arguments)]
            # In a function that makes a component, these parameters are options instead.
            needed = [p.kind != p.KEYWORD_ONLY and p.default is p.empty and p.name not in given for p in first]
            if len(first) == len(self.adapter.arguments) and all(needed):
                return adapted(self.adapter, found, dict(list(known.items())[len(first) :]))
        return found, self.options(found)

    def _checked_options(self, options: Parameters, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of every option; raise an `InputError` for unknown or missing keys."""
        for key in given:
            if key not in options:
                raise InputError(f"there is no key '{self.key}.{key}'; {nearest(key, options)}")
        values = {}
        for key, option in options.items():
            if key not in given and option.default is option.empty:
                raise InputError(f"the key '{self.key}.{key}' is missing")
            values[key] = checked_option(f"{self.key}.{key}", given[key], option) if key in given else option.default
        return values

    def _fits(self, kind: type) -> bool:
        """Whether instances of the class are components or can be called as plain functions."""
        if self.base is None or issubclass(kind, self.base):
            return True
        is_callable = any("__call__" in vars(parent) for parent in kind.__mro__)
        return self.adapter is not None and is_callable and section_of(kind) is None

    def _component(self, made: Any, said: str) -> Component:
        """Return a component unchanged; wrap a plain function as one."""
        if self.base is None or isinstance(made, self.base):
            return typing.cast(Component, made)
        if self.adapter is not None and self._fits(type(made)) and accepts(made, self.adapter.arguments):
            return typing.cast(Component, self.adapter(made))
        raise self._refusal(said, type(made))

    def _refusal(self, said: str, kind: type) -> InputError:
        assert self.base is not None
        expected, other = f"{article(self.base.__name__)} or its name", section_of(kind)
        if self.adapter is not None:
            arguments = ", ".join(self.adapter.arguments)
            expected = f"{article(self.base.__name__)}, its name or a function of ({arguments})"
        which = f", which is {article(other.rpartition('.')[2])}" if other else ""
        return InputError(f"{self.key} is {said}{which}; {expected} was expected")


def checked_option(key: str, value: Any, option: inspect.Parameter) -> Any:
    """Return the value of an option, validated by its annotation; null is valid if it is the default."""
    if value is None and option.default is None:
        return None
    try:
        return TypeAdapter(option.annotation).validate_python(value)
    except PydanticSchemaGenerationError:
        kind = getattr(option.annotation, "__name__", str(option.annotation))
        raise InputError(f"{key} is {short_repr(value)}, but its type, {kind}, is none that a recipe has") from None
    except ValidationError as error:
        wrong = error.errors()[0]["input"]
        item = "" if wrong is value else f" instead of {short_repr(wrong)}"
        raise InputError(f"{key} is {short_repr(value)}; {expectation(*error.errors())}{item}") from None


def adapted(
    adapter: type[PlainFunction], function: Callable[..., Any], options: Parameters
) -> tuple[Callable[..., Any], Parameters]:
    """Return a maker that wraps a plain function with its options, and those options with the adapter's own."""
    own = {key: p for key, p in parameters(adapter).items() if key not in ("function", "options")}

    def make(**given: Any) -> PlainFunction:
        passed = {key: value for key, value in given.items() if key in options}
        return adapter(function, passed, **{key: value for key, value in given.items() if key in own})

    return make, own | options


def callable_with_parameters(target: Callable[..., Any]) -> Any:
    """Return the callable with the parameters: for a torch module, its `forward`."""
    return target if inspect.isclass(target) else getattr(target, "forward", target)


def signature(target: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(callable_with_parameters(target))
    except (TypeError, ValueError):
        name = getattr(target, "__name__", short_repr(target))
        raise InputError(f"the parameters of {name!r} are not known; a function in Python was expected") from None


def parameters(target: Callable[..., Any]) -> Parameters:
    """Return the named parameters of a class or function, with annotations resolved to types."""
    known, annotated = signature(target).parameters.values(), callable_with_parameters(target)
    if not inspect.isclass(annotated):
        annotated = annotated if inspect.isroutine(annotated) else type(annotated).__call__
    elif not is_dataclass(annotated):  # a dataclass may inherit fields whose types resolve in other modules
        annotated = annotated.__init__
    hints = typing.get_type_hints(annotated, include_extras=True)
    return {p.name: p.replace(annotation=hints.get(p.name, Any)) for p in known if p.kind not in VARIADIC}


def required(target: Callable[..., Any]) -> list[str]:
    known = signature(target).parameters.values()
    return [p.name for p in known if p.default is p.empty and p.kind not in VARIADIC]


def accepts(function: Callable[..., Any], arguments: tuple[str, ...]) -> bool:
    """Whether the function accepts exactly these arguments; True for C functions without a signature."""
    try:
        signature(function).bind(*arguments)
    except TypeError:
        return False
    except InputError:
        return True
    return True


def section_of(kind: type) -> str | None:
    """Return the section of a recipe that components of this class belong to."""
    return getattr(kind, "recipe_section", None)


def qualified_name(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers and strings unchanged, other values as their repr without addresses."""
    plain = str | int | float | None
    return {key: value if isinstance(value, plain) else without_address(value) for key, value in values.items()}


def without_address(value: object) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def article(noun: str) -> str:
    """
    >>> article("objective"), article("partition")
    ('an objective', 'a partition')
    """
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
