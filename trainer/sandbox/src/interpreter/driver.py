# What runs inside of an interpreter in the sandbox: it loads what all samples need, says where it can be called
# again, and then answers one message. Nothing that it says of itself counts as success but what the sandbox can
# check: see docs/rewards.md, "Unit tests in the sandbox".
import ast, atexit, builtins, io, json, os, sys, time

_unread = b""


def read_line():
    global _unread
    while b"\n" not in _unread:
        data = os.read(0, 65536)
        if not data:
            raise EOFError("the other end is gone")
        _unread += data
    line, _, _unread = _unread.partition(b"\n")
    return json.loads(line)


def write_line(message):
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(1, data):]


def said(error):
    return f"{type(error).__name__}: {error}"[:2000]


def end(code):
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            code = code or 1
    os._exit(code)


class Sink(io.TextIOBase):
    """Drops what code prints."""

    def writable(self):
        return True

    def write(self, text):
        return len(text)


def module_of(source, name, file):
    """Runs a source as the module `name`."""
    module = type(sys)(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    exec(compile(source, file, "exec"), module.__dict__)
    return module


def run_program(message):
    """A whole program: standard input and output are the test's."""
    code = 0
    try:
        module_of(message["code"], "__main__", "main.py")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
        code = 1
    # Programs that write their output at the end register that.
    atexit.unregister(resume)
    atexit._run_exitfuncs()
    end(code & 255)


# Values between two interpreters: plain data is copied, everything else stays where it is and is asked.

from collections import deque
from decimal import Decimal
from fractions import Fraction

OPERATORS = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift".split()
BINARY = [f"__{side}{name}__" for name in OPERATORS for side in ("", "r", "i")]
COMPARISONS = [f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge")]
UNARY = ["__len__", "__iter__", "__next__", "__neg__", "__pos__", "__invert__", "__enter__"]


class Remote:
    """An object of the other interpreter."""

    def __init__(self, peer, number):
        self.__dict__.update(_peer=peer, _number=number)

    def __getattr__(self, name):
        return self._peer.ask("attribute", self, name)

    def __setattr__(self, name, value):
        self._peer.ask("assign", self, name, value)

    def __call__(self, *arguments, **named):
        return self._peer.ask("call", self, *arguments, **named)

    def __getitem__(self, key):
        return self._peer.ask("method", self, "__getitem__", key)

    def __setitem__(self, key, value):
        self._peer.ask("method", self, "__setitem__", key, value)

    def __delitem__(self, key):
        self._peer.ask("method", self, "__delitem__", key)

    def __exit__(self, *_):
        return self._peer.ask("method", self, "__exit__", None, None, None)

    def __str__(self):
        return self._peer.ask("str", self)

    def __repr__(self):
        return self._peer.ask("repr", self)

    def __bool__(self):
        return self._peer.ask("bool", self) is True

    def __hash__(self):
        return self._number


def compare(name):
    # Whether code's object equals a value of the test is nothing that the code may say.
    def method(self, other):
        return self._peer.ask("method", self, name, other) if isinstance(other, Remote) else NotImplemented

    return method


def combine(name):
    # Nor what it is beside one: `abs(f(1) - 0.5) < 1e-6` needs a number that the test itself subtracts from.
    def method(self, other):
        result = self._peer.ask("method", self, name, other)
        if isinstance(other, Remote) or isinstance(result, Remote) or result is NotImplemented:
            return result
        raise TypeError(f"{name} of the code's object and a value gave a value")

    return method


def unary(name):
    return lambda self: self._peer.ask("method", self, name)


for name in COMPARISONS:
    setattr(Remote, name, compare(name))
for name in BINARY:
    setattr(Remote, name, combine(name))
for name in UNARY:
    setattr(Remote, name, unary(name))


class RemoteError(Exception):
    """An exception of the other interpreter that this one has no class for."""


class Peer:
    """One of two interpreters that ask each other: the tests' and the code's."""

    def __init__(self, serves_all):
        self.serves_all = serves_all
        self.objects = []

    def encode(self, value):
        if value is None or isinstance(value, (bool, str)):
            return value if value is None or type(value) is bool else str.__str__(value)
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, list):
            return [self.encode(item) for item in value]
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        for tag, kind in SEQUENCES.items():
            if isinstance(value, kind):
                return {tag: [self.encode(item) for item in value]}
        if isinstance(value, (bytes, bytearray)):
            return {type(value).__name__ if type(value) is bytearray else "bytes": value.hex()}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, (Decimal, Fraction)):
            return {"Decimal" if isinstance(value, Decimal) else "Fraction": str(value)}
        if value is NotImplemented:
            return {"NotImplemented": 0}
        if isinstance(value, Remote):
            return {"own": value._number}
        self.objects.append(value)
        return {"object": len(self.objects) - 1}

    def decode(self, value):
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        (tag, content), = value.items()
        if tag in SEQUENCES:
            return SEQUENCES[tag](self.decode(item) for item in content)
        if tag == "dict":
            return {self.decode(key): self.decode(item) for key, item in content}
        if tag == "object":
            return Remote(self, int(content))
        if tag == "own":
            return self.objects[content]
        return PLAIN[tag](content)

    def ask(self, operation, *arguments, **named):
        places = {idx: argument for idx, argument in enumerate(arguments) if isinstance(argument, MUTABLE)}
        sent = [self.encode(argument) for argument in arguments]
        write_line(["ask", operation, sent, {key: self.encode(item) for key, item in named.items()}])
        while True:
            kind, *rest = read_line()
            if kind == "ask":
                self.serve(*rest)
            elif kind == "error":
                name, message = map(str, rest)
                known = getattr(builtins, name, None)
                is_known = isinstance(known, type) and issubclass(known, Exception)
                raise (known(message) if is_known and name not in TAKES_MORE else RemoteError(f"{name}: {message}"))
            else:
                answer, changed = rest
                for idx, content in changed:
                    replace(places[idx], self.decode(content))
                return self.decode(answer)

    def serve(self, operation, sent, named):
        try:
            arguments = [self.decode(argument) for argument in sent]
            # What the code may ask of the tests' interpreter is to call a function that it was given.
            if not self.serves_all and not (operation == "call" and "own" in sent[0]):
                raise TypeError(f"{operation} is not served")
            result = self.perform(operation, arguments, {key: self.decode(item) for key, item in named.items()})
            answer = self.encode(result)
            changed = []
            for idx, argument in enumerate(arguments):
                if isinstance(argument, MUTABLE) and (now := self.encode(argument)) != sent[idx]:
                    changed.append([idx, now])
            message = ["answer", answer, changed]
        except BaseException as error:
            message = ["error", type(error).__name__, str(error)[:2000]]
        write_line(message)

    def perform(self, operation, arguments, named):
        target, *rest = arguments
        if operation == "call":
            return target(*rest, **named)
        if operation == "method":
            return getattr(target, rest[0], lambda *_: NotImplemented)(*rest[1:])
        if operation == "attribute":
            return getattr(target, rest[0])
        if operation == "assign":
            return setattr(target, rest[0], rest[1])
        if operation == "names":
            return {name: vars(self.module)[name] for name in target if name in vars(self.module)}
        return {"str": str, "repr": repr, "bool": bool}[operation](target)


SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
PLAIN = {
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda parts: complex(*parts),
    "Decimal": Decimal,
    "Fraction": Fraction,
    "NotImplemented": lambda _: NotImplemented,
}
MUTABLE = (list, dict, set, deque, bytearray)
# Exceptions that are not made of one text.
TAKES_MORE = {"UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup"}


def replace(old, new):
    old.clear()
    (old.update if isinstance(old, (dict, set)) else old.extend)(new)


def run_code(message):
    """The code of a completion: loads it, then answers what the tests' interpreter asks."""
    sys.stdin, sys.stdout = io.StringIO(""), Sink()
    sys.stderr = sys.stdout
    peer = Peer(serves_all=True)
    try:
        peer.module = module_of(message["code"], "solution", "main.py")
    except BaseException as error:
        write_line(["failed", said(error)])
        end(1)
    write_line(["loaded"])
    while True:
        _, *request = read_line()
        peer.serve(*request)


def run_test(message):
    """A test: runs in an interpreter that never runs the completion's code, and asks the one that does."""
    sys.stdin, sys.stdout = io.StringIO(""), Sink()
    sys.stderr = sys.stdout
    peer = Peer(serves_all=False)
    try:
        state, *rest = read_line()
        if state != "loaded":
            raise RemoteError(*rest)
        tree = ast.parse(message["test"], "test.py")
        exec(compile(tree, "test.py", "exec"), names_for(tree, peer))
    except BaseException as error:
        write_line(["failed", "an assertion fails" if type(error) is AssertionError and not error.args else said(error)])
        os._exit(1)
    os._exit(0)


def names_for(tree, peer):
    """What a test finds by name: modules of the standard library are its own, other names are the code's."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    bases = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    modules = {base.id for base in bases if isinstance(base, ast.Name)} & sys.stdlib_module_names
    names = {"__name__": "__test__", "__builtins__": builtins}
    found = peer.ask("names", sorted(used - modules))
    for name, value in found.items():
        if hasattr(builtins, name):
            raise RemoteError(f"the code redefines {name}, which the test uses")
        names[name] = value
    for name in modules:
        try:
            names[name] = __import__(name)
        except ImportError:
            pass
    return names


def run_reward(sample):
    """A reward function: prints its verdict on a sample."""
    try:
        value = FUNCTION(**{name: sample.get(name) for name in PARAMETERS or sample})
        verdict = value if isinstance(value, dict) else {"value": value}
        if verdict.get("value") is not None:
            verdict["value"] = float(verdict["value"])
        json.dumps(verdict, allow_nan=False)
    except BaseException as error:
        verdict = {"status": "infra", "message": said(error)}
    write_line(verdict)
    end(0)


def load_reward(path, source, function):
    """Loads a file with a reward function, and finds what it takes of a sample."""
    global FUNCTION, PARAMETERS
    sys.stdout = sys.stderr
    FUNCTION = getattr(module_of(source, "reward_functions", path), function)
    code = getattr(FUNCTION, "__code__", None)
    # Without a plain list of parameters it gets everything.
    PARAMETERS = None
    if code is not None and not code.co_flags & 0x08:
        PARAMETERS = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def resume():
    message = read_line()
    {
        "ping": lambda _: end(0),
        "program": run_program,
        "code": run_code,
        "test": run_test,
        "reward": run_reward,
    }[message.pop("run")](message)


builtins.exit = builtins.quit = sys.exit
sys.set_int_max_str_digits(0)
sys.argv = ["main.py"]
first = read_line()
for name in first["imports"]:
    try:
        __import__(name)
    except ImportError:
        pass
try:
    if "source" in first:
        load_reward(first["path"], first["source"], first["function"])
except BaseException as error:
    write_line({"failed": said(error)})
    end(1)
# CPython keeps an object at its id: the sandbox can call this function of C, and it calls `resume`.
atexit.register(resume)
write_line({"resume": [id(atexit._run_exitfuncs), id(atexit)] if sys.implementation.name == "cpython" else None})
# The sandbox stops the interpreter here to copy its memory: a clock is read without giving up the interpreter's lock.
time.monotonic()
resume()
