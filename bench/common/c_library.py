# SPDX-License-Identifier: Apache-2.0
"""C functions of a library by ctypes, with exceptions for what says that it failed."""
import ctypes

P, I, U, D, S, INT = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_double,
                      ctypes.c_char_p, ctypes.c_int)


class NativeError(RuntimeError):
    """What the library has to say of a call that failed."""


class CLibrary:
    """`signatures`: {name without the prefix: (result, arguments)}, "error" among them. Each becomes
    a method `_name`."""

    def __init__(self, path, prefix, signatures):
        library = ctypes.CDLL(path)
        self._signatures = signatures
        for name, (result, arguments) in signatures.items():
            function = getattr(library, prefix + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, "_" + name, function)

    def checked(self, name, *arguments):
        """Calls; raises where the result says that the call failed: a null pointer, a status that is
        not 0, a number below 0."""
        result = getattr(self, "_" + name)(*arguments)
        kind = self._signatures[name][0]
        failed = not result if kind is P else result != 0 if kind is INT else result < 0
        if failed:
            raise NativeError(f"{name}: {self._error().decode()}")
        return result
