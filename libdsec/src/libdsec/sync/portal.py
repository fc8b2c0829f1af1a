"""From threads that wait into the one that runs the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from ..protocol.errors import ClientClosedError

P = ParamSpec("P")
R = TypeVar("R")


class Portal:
    """One event loop in a thread of its own, from `start` to `stop`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Again is fine."""
        with self._lock:
            if self._loop is not None:
                return
            ready = threading.Event()
            # a daemon: a program that forgets to close its client can still end
            self._thread = threading.Thread(target=self._main, args=(ready,), name="dsec-client", daemon=True)
            self._thread.start()
            ready.wait()

    def stop(self) -> None:
        """Again is fine; calls under way in other threads are cancelled."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """The coroutine's result, waited for.

        :raises ClientClosedError: the client is not open.
        """
        with self._lock:  # so that nothing is handed over after `stop`
            future = None if self._loop is None else asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        if future is None:
            coroutine.close()
            raise ClientClosedError("cannot call: this client is not open; use `with DSecClient()` or open()")
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosedError("cannot wait for an answer: this client was closed") from None
        except BaseException:
            future.cancel()  # nothing where the coroutine has ended; after Ctrl-C it is told
            raise

    def run(self, function: Callable[[], R]) -> R:
        """What a plain function returns, called in the loop's thread.

        :raises ClientClosedError: the client is not open.
        """

        async def call() -> R:
            return function()

        return self.call(call())

    def _main(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            asyncio.set_event_loop(loop)
            self._loop = loop
            ready.set()
            loop.run_forever()


class Twin:
    """A blocking object and the asynchronous one it stands for."""

    def __init__(self, portal: Portal, twin: Any) -> None:
        self._portal = portal
        self._twin = twin

    def __repr__(self) -> str:
        return repr(self._twin)


class blocking(Generic[P, R]):  # noqa: N801  # used as a function is
    """The method that calls an asynchronous method of the twin and waits for it."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        functools.update_wrapper(self, method)

    def __call__(self, instance: Twin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return instance._portal.call(self._method(instance._twin, *args, **kwargs))

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Twin, owner: type) -> Callable[P, R]: ...
    def __get__(self, instance: Twin | None, owner: type) -> Self | Callable[P, R]:
        return self if instance is None else functools.partial(self.__call__, instance)


class inside(Generic[P, R]):  # noqa: N801
    """The method that calls a plain method of the twin in the loop's thread, which alone may touch it."""

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self._method = method
        functools.update_wrapper(self, method)

    def __call__(self, instance: Twin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return instance._portal.run(functools.partial(self._method, instance._twin, *args, **kwargs))

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Twin, owner: type) -> Callable[P, R]: ...
    def __get__(self, instance: Twin | None, owner: type) -> Self | Callable[P, R]:
        return self if instance is None else functools.partial(self.__call__, instance)


def iterated(portal: Portal, source: Any) -> Iterator[Any]:
    """An asynchronous iterator's items, each waited for."""
    iterator = source.__aiter__()

    async def following() -> tuple[bool, Any]:
        try:
            return True, await iterator.__anext__()
        except StopAsyncIteration:
            return False, None

    while True:
        more, item = portal.call(following())
        if not more:
            return
        yield item
