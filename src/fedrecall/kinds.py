"""What can be given for a section of a recipe, there or in Python: a name, an object, a class or a function."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from fedrecall import registry
from fedrecall.errors import InputError, short_repr

T = TypeVar("T")
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Kind(Generic[T]):
    """The things of one section: objectives, algorithms or partitions. `base` says `recipe_section`, by which the
    things of one section are known in another."""

    section: str
    base: type[T]
    listing: Mapping[str, Callable[..., Any]]
    arguments: tuple[str, ...] = ()  # what a plain function of the user's is called with
    wrap: Callable[..., T] | None = None  # makes one of such a function and its other options

    def of(self, given: Any) -> T:
        """What was given in Python: the thing itself, a name, a group with a name, a class, or a function."""
        if isinstance(given, str):
            return self.create(given, {})
        if isinstance(given, Mapping):
            options = dict(given)
            name = options.pop("name", None)
            if not isinstance(name, str):
                raise InputError(f"{self.section}.name is {short_repr(name)}; a name was expected")
            return self.create(name, options)
        if not inspect.isclass(given):
            return self._checked(short_repr(given), given)
        said = f"the class {given.__name__}"
        if not self._may_be(given):
            raise self._refusal(said, given)
        missing = [key for key, option in registry.options(given).items() if option.default is option.empty]
        if missing:
            raise InputError(
                f"{self.section} is {said}, which needs {', '.join(missing)}; an instance of it was expected"
            )
        return self._checked(said, given())

    def create(self, name: str, options: Mapping[str, Any]) -> T:
        """The thing of this name, with these options."""
        target = self.find(name, options)
        made = registry.instantiate(self.section, target, options)
        said = repr(name) if inspect.isclass(target) else f"what {name!r} returned, {short_repr(made)}"
        return self._checked(said, made)

    def find(self, name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
        """What makes the thing of this name out of its options."""
        target = registry.find(self.section, name, self.listing)
        if name in self.listing:
            return target
        if isinstance(target, self.base):
            return lambda: target
        if inspect.isclass(target) and not self._may_be(target):
            raise self._refusal(repr(name), target)
        return self._maker(target) if self._is_plain(target, options) else target

    def _may_be(self, given: type) -> bool:
        """Can an instance of the class be one of this kind?"""
        calls = any("__call__" in vars(kind) for kind in given.__mro__)
        return issubclass(given, self.base) or (self.wrap is not None and calls and not section_of(given))

    def _is_plain(self, target: Callable[..., Any], options: Mapping[str, Any]) -> bool:
        """Is it called with what the program has, and not to make something of options?"""
        if self.wrap is None or inspect.isclass(target):
            return False
        first = parameters(target)[: len(self.arguments)]
        given = [p for p in first if p.kind in VARIADIC or p.default is not p.empty or p.name in options]
        return len(first) == len(self.arguments) and not given

    def _maker(self, function: Callable[..., Any]) -> Callable[..., T]:
        """Makes one of a function and its options: those of its parameters that the program does not give."""
        assert self.wrap is not None
        wrap, own = self.wrap, registry.options(self.wrap)
        called: Any = what_is_called(function)
        annotated = called if inspect.isroutine(called) else type(called).__call__
        hints = typing.get_type_hints(annotated, include_extras=True)
        rest = [p for p in parameters(function)[len(self.arguments) :] if p.kind not in VARIADIC]
        options = {p.name: p.replace(annotation=hints.get(p.name, Any)) for p in rest}
        others = {key: option for key, option in own.items() if key not in ("function", "options")}

        def make(**given: Any) -> T:
            passed = {key: value for key, value in given.items() if key in options}
            return wrap(function, passed, **{key: value for key, value in given.items() if key in others})

        known = [p.replace(kind=p.KEYWORD_ONLY) for p in (others | options).values()]
        make.__signature__ = inspect.Signature(known)  # type: ignore[attr-defined]
        make.__annotations__ = {p.name: p.annotation for p in known}
        return make

    def _checked(self, said: str, thing: Any) -> T:
        """The thing, if it is of this kind or a function that can be made one."""
        if isinstance(thing, self.base):
            return thing
        if self.wrap is not None and callable(thing) and not section_of(type(thing)) and self._accepts(thing):
            return self.wrap(thing, {})
        raise self._refusal(said, type(thing))

    def _accepts(self, function: Callable[..., Any]) -> bool:
        try:
            inspect.signature(what_is_called(function)).bind(*self.arguments)
        except TypeError:
            return False
        except ValueError:  # of a function in C, whose parameters nobody knows
            return True
        return True

    def _refusal(self, said: str, found: type) -> InputError:
        other, expected = section_of(found), f"{article(self.base.__name__)} or its name"
        if self.wrap is not None:
            expected = f"{article(self.base.__name__)}, its name or a function of ({', '.join(self.arguments)})"
        what = f", which is {article(other)}" if other else ""
        return InputError(f"{self.section} is {said}{what}; {expected} was expected")


def what_is_called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that has the parameters: of a module its `forward`."""
    return function if inspect.isclass(function) else getattr(function, "forward", function)


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """What it is called with; nothing, if nobody knows."""
    try:
        return list(inspect.signature(what_is_called(function)).parameters.values())
    except (TypeError, ValueError):
        return []


def section_of(found: type) -> str | None:
    """The section of a recipe that things of this class belong to."""
    return getattr(found, "recipe_section", None)


def describe_function(function: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """A user's function and what it is called with, or an object that can be called and what it holds, to be
    written down: without addresses, which differ from one process to the next."""
    options = dict(options)
    while isinstance(function, partial):
        function, options = function.func, {**function.keywords, **options}
    if hasattr(function, "__qualname__"):
        return {"class": f"{function.__module__}:{function.__qualname__}", "options": written(options)}
    held = getattr(function, "__dict__", {}).items()
    holds = {key: value for key, value in held if not key.startswith("_") and key != "training"}
    if hasattr(function, "named_buffers"):  # of a module of torch
        holds |= dict(function.named_buffers())
    name = f"{type(function).__module__}:{type(function).__qualname__}"
    return {"class": name, "repr": without_address(function), "options": written(holds | options)}


def written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and words as they are, anything else as Python shows it."""
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
