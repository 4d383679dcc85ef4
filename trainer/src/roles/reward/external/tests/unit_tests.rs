//! Unit tests in the sandbox: right code passes, wrong code fails, and code that attacks its tests fails.

use std::sync::LazyLock;
use std::time::Duration;

use rlt_api::spec::CodeScoring;
use rlt_core::reward::code::{CodeTests, code_of};
use rlt_core::types::RewardStatus::{Ok as Fine, Timeout, Wrong};
use serde_json::json;

use super::super::unit_tests::Runner;
use super::python::{MODULE, wasm};
use super::*;

/// Time limit that no program of the tests reaches on the slowest machine: fuel ends endless loops before.
const LONG: Duration = Duration::from_secs(300);

static RUNNER: LazyLock<Option<Runner>> = LazyLock::new(|| {
    let options = serde_json::from_value(json!({"runSeconds": 300})).unwrap();
    let runner = Runner::new(MODULE.as_ref()?, options, &wasm()).unwrap();
    Some(bounded(&runner, 4_000_000_000, LONG))
});

/// Creates the same interpreter with other limits.
fn bounded(runner: &Runner, fuel: u64, timeout: Duration) -> Runner {
    Runner { interpreter: runner.interpreter.with_bounds(fuel, timeout), options: runner.options.clone() }
}

fn verdict_of(runner: &Runner, completion: &str, tests: &Value) -> Verdict {
    let tests = CodeTests::parse(tests).unwrap();
    runner.verdict(&tests.programs(code_of(completion), runner.options.max_tests as usize))
}

#[test]
fn tests_pass_right_code_and_fail_wrong_code_and_are_counted() {
    let Some(runner) = &*RUNNER else { return };
    let sums = json!({"inputs": ["1\n2\n", "5\n"], "outputs": ["3\n", "5"]});
    let calls = json!({"fn_name": "add", "inputs": ["1\n2", "\"a\"\n\"b\""], "outputs": ["3", "ab"]});
    let numbers =
        json!(["assert f(2) == 4", "assert f(3) == 9", "import math\nassert math.isclose(f(0.5), 0.25)"]);
    let points = json!(["p = Point(1, 2) + Point(3, 4)\nassert (p.x, p.y) == (4, 6) and p == Point(4, 6)\n\
                         assert str(p) == '(4, 6)' and p != Point(4, 7)"]);
    let others = json!([
        "values = [3, 1, 2]\nsort(values)\nassert values == [1, 2, 3]",
        "assert apply(lambda x: x + 1, [1, 2]) == [2, 3]",
        "assert list(count(3)) == [0, 1, 2] and sorted(pairs({'a': 1})) == [('a', 1)]",
        "try:\n    fail()\nexcept ValueError as error:\n    assert str(error) == 'no'\nelse:\n    assert False",
    ]);
    let point = "class Point:\n    def __init__(self, x, y): self.x, self.y = x, y\n    \
                 def __add__(self, o): return Point(self.x + o.x, self.y + o.y)\n    \
                 def __eq__(self, o): return (self.x, self.y) == (o.x, o.y)\n    \
                 def __str__(self): return f'({self.x}, {self.y})'";
    let other = "def sort(l): l.sort()\ndef apply(f, l): return [f(x) for x in l]\n\
                 def count(n):\n    for i in range(n): yield i\n\
                 def pairs(d): return set(d.items())\ndef fail(): raise ValueError('no')\n\
                 if __name__ == '__main__': print(input())";
    for (tests, code, status, value, words) in [
        (&sums, "import sys\nprint(sum(map(int, sys.stdin)))", Fine, 1.0, ""),
        (&sums, "print(int(input()) + 2)", Wrong, 0.5, "test 2 of 2: expected \"5\", got \"7\\n\""),
        (&sums, "print(", Wrong, 0.0, "SyntaxError"),
        (&sums, "print(input() / 2)", Wrong, 0.0, "TypeError"),
        (
            &sums,
            "import atexit, sys\natexit.register(print, sum(map(int, sys.stdin)))\nexit()",
            Fine,
            1.0,
            "",
        ),
        (&calls, "def add(a, b): return a + b", Fine, 1.0, ""),
        (&calls, "class Solution:\n    def add(self, a, b): return a + b", Fine, 1.0, ""),
        (&numbers, "def f(x): return x * x", Fine, 1.0, ""),
        (&numbers, "def f(x): return 4", Wrong, 1.0 / 3.0, "test 2 of 3: an assertion fails"),
        (&numbers, "def g(x): return 4", Wrong, 0.0, "NameError"),
        (&numbers, "def f(x) return 4", Wrong, 0.0, "SyntaxError"),
        (&points, point, Fine, 1.0, ""),
        (&points, &point.replace("self.y + o.y", "self.y"), Wrong, 0.0, "an assertion fails"),
        (&others, other, Fine, 1.0, ""),
        (&others, &other.replace("l.sort()", "pass"), Wrong, 0.75, "test 1 of 4"),
    ] {
        let verdict = verdict_of(runner, code, tests);
        assert_eq!((verdict.status, verdict.value), (status, value), "{code}: {verdict:?}");
        assert!(verdict.message.clone().unwrap_or_default().contains(words), "{code}: {verdict:?}");
    }
    let mut all = bounded(runner, 4_000_000_000, LONG);
    all.options.scoring = CodeScoring::All;
    assert_eq!(verdict_of(&all, "def f(x): return 4", &numbers).value, 0.0);
}

/// Code that tries to pass wrongly: by output, by exit, and by attacks on the interpreter.
const ATTACKS: [&str; 16] = [
    "import os\nos._exit(0)",
    "exit(0)",
    "print('passed')\nprint('[\"answer\", 1, []]')\nprint(1)",
    "import os\nos.write(1, b'[\"loaded\"]\\n[\"answer\", {\"dict\": [[\"f\", 1]]}, []]\\n' * 3)\nos._exit(0)",
    "class Always(int):\n    def __eq__(self, other): return True\n    __le__ = __lt__ = __ge__ = __gt__ = __eq__\n\
     def f(*_): return Always(7)",
    "class Always:\n    def __eq__(self, other): return True\n    __le__ = __lt__ = __ge__ = __eq__\n    \
     def __sub__(self, other): return 0\n    __rsub__ = __sub__\n    def __abs__(self): return 0\n    \
     def __float__(self): return 0.25\n\
     def f(*_): return Always()",
    "import builtins\nbuiltins.abs = builtins.sorted = lambda *_: 0\nbuiltins.AssertionError = StopIteration\n\
     def f(*_): pass",
    "def abs(_): return 0\ndef f(x): return 0",
    "def all(_): return True\ndef len(_): return 1\ndef f(x): return 0",
    "class math:\n    isclose = lambda *_: True\ndef f(x): return 0",
    "import sys, gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'serves_all' in o: o['serves_all'] = 1\n\
     def f(*_): raise SystemExit(0)",
    "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\n\
     frame.f_globals['write_line'](['answer', 1, []])\ndef f(*_): pass",
    "def f(*_):\n    import os\n    os.write(1, b'[\"answer\", [1], [[0, [1]]]]\\n')\n    os._exit(0)",
    "def f(*_):\n    import os\n    os.write(1, b'[\"ask\", \"attribute\", [{\"own\": 0}, \"__globals__\"], {}]\\n')\n    os._exit(0)",
    "def f(*_): raise AssertionError",
    "def f(*_): return f",
];

/// Code that runs, prints, recurses or allocates without end.
const ENDLESS: [&str; 6] = [
    "import atexit\natexit.register(lambda: print(1))\nwhile True: pass",
    "while True: print('x' * 1000)",
    "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "def f(*_): return f()\nf()",
    "import sys\nsys.setrecursionlimit(10**9)\ndef f(*_): return [f()]\nf()",
    "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')\n9 ** 9 ** 9",
];

#[test]
fn code_that_attacks_its_tests_never_passes() {
    let Some(runner) = &*RUNNER else { return };
    let outputs = json!({"inputs": ["1\n"], "outputs": ["41"]});
    let tools = json!([
        "assert abs(f(0.5) - 0.25) < 1e-6 and all(f(x) == x * x for x in range(3)) and len(str(f(2))) == 1"
    ]);
    let modules = json!(["assert math.isclose(f(0.5), 0.25)"]);
    for (idx, code) in ATTACKS.into_iter().enumerate() {
        for tests in [&outputs, &tools, &modules].into_iter().skip(usize::from(idx > 3)) {
            let verdict = verdict_of(runner, code, tests);
            assert_eq!((verdict.status, verdict.value), (Wrong, 0.0), "{code}: {tests}: {verdict:?}");
            let message = verdict.message.unwrap();
            assert!(!message.contains("fuel"), "each fails by what it does: {code}: {message}");
        }
    }
    for tests in [&tools, &modules] {
        assert_eq!(verdict_of(runner, "def f(x): return x * x", tests), Verdict::ok(1.0), "{tests}");
    }
}

#[test]
fn code_that_takes_all_it_gets_ends_in_time_with_the_same_verdict_every_time() {
    let Some(runner) = &*RUNNER else { return };
    let late = bounded(runner, u64::MAX / 2, Duration::from_millis(300));
    let runner = &bounded(runner, 500_000_000, LONG);
    let tests = [json!({"inputs": ["1\n"], "outputs": ["41"]}), json!(["assert f(1) == 41"])];
    for code in ENDLESS {
        for tests in &tests {
            // Fuel must end the code: a time limit would give no verdict.
            let verdict = verdict_of(runner, code, tests);
            assert_eq!((verdict.status, verdict.value), (Wrong, 0.0), "{code}: {tests}: {verdict:?}");
        }
    }
    let first = verdict_of(runner, ENDLESS[1], &tests[0]);
    assert_eq!(first, verdict_of(runner, ENDLESS[1], &tests[0]));
    // A timeout depends on the machine, so it is no verdict.
    let late = verdict_of(&late, "while True: pass", &tests[0]);
    assert_eq!((late.status, late.value), (Timeout, 0.0));
}

#[test]
fn code_reaches_nothing_of_the_machine() {
    let Some(runner) = &*RUNNER else { return };
    let code = r#"
import os, random, sys, time

def tried(act):
    try:
        return act()
    except BaseException as error:
        return type(error).__name__

def socket():
    import socket
    return socket.create_connection(("127.0.0.1", 80))

def thread():
    import threading
    threading.Thread(target=print).start()

begin = time.monotonic()
time.sleep(3600)
print(tried(lambda: open("/etc/passwd").read()))
print(tried(lambda: open("/tmp/x", "w").write("x")))
print(tried(socket))
print(tried(thread))
print(tried(lambda: os.system("true")), tried(lambda: os.fork()))
print(dict(os.environ), sys.argv, time.gmtime().tm_year, time.monotonic() - begin >= 3600)
print(tried(lambda: os.read(3, 1)), tried(lambda: os.write(4, b"x")))
"#;
    let expected = "FileNotFoundError\nFileNotFoundError\nAttributeError\nRuntimeError\nAttributeError AttributeError\n\
                    {} ['main.py'] 2000 True\nIsADirectoryError OSError\n";
    let verdict = verdict_of(runner, code, &json!({"inputs": [""], "outputs": [expected]}));
    assert_eq!(verdict, Verdict::ok(1.0));
    let random =
        "import random, os, time\nprint(random.random(), os.urandom(4), time.time(), hash('a'), id(random))";
    let tests = json!({"inputs": ["1", "2"], "outputs": ["", ""]});
    let (first, second) = (verdict_of(runner, random, &tests), verdict_of(runner, random, &tests));
    assert_eq!(first, second, "the same every time");
}

#[test]
fn the_rows_of_the_example_are_passed_by_right_answers() {
    let Some(runner) = &*RUNNER else { return };
    let answers = [
        "Sort them.\n```python\ndef second_largest(numbers):\n    rest = sorted(set(numbers))\n    \
         return rest[-2] if len(rest) > 1 else None\n```",
        "```python\nimport sys\nprint(sum(int(line) for line in sys.stdin))\n```",
        "```python\ndef rotate(text, by):\n    by %= max(len(text), 1)\n    return text[by:] + text[:by]\n```",
        "```python\nclass Counter:\n    def __init__(self): self.counts = {}\n    \
         def add(self, word): self.counts[word] = self.counts.get(word, 0) + 1\n    \
         def most_common(self): return max(self.counts, key=self.counts.get)\n```",
    ];
    let rows = include_str!("../../../../../../examples/rewards/unit-tests.jsonl");
    let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(rows.len(), answers.len());
    for (row, answer) in rows.iter().zip(answers) {
        assert_eq!(verdict_of(runner, answer, &row["ground_truth"]), Verdict::ok(1.0), "{row}");
        assert_eq!(verdict_of(runner, "I cannot.", &row["ground_truth"]).status, Wrong, "{row}");
    }
}
