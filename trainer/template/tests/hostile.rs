//! Hostile templates: each takes more steps, memory or stack than any conversation, and ends in an error.

use rlt_template::{Error, ErrorKind, MAX_SOURCE_BYTES, MAX_STEPS, Rendered, Template};
use serde_json::{Map, Value, json};

/// Number of steps for tests of the charges, a hundredth of what templates may take otherwise.
const FEW_STEPS: usize = MAX_STEPS / 100;

fn no_clock(_: &str) -> Result<String, String> {
    Err("no clock".to_owned())
}

fn rendered(template: &str, max_steps: usize) -> Result<Rendered, Error> {
    Template::new(template)?.render_within(&Map::new(), &no_clock, max_steps)
}

fn assert_stopped(template: &str, max_steps: usize) {
    let outcome = rendered(template, max_steps);
    let kind = outcome.as_ref().map_err(Error::kind).err();
    assert_eq!(kind, Some(ErrorKind::Budget), "{template}: {:?}", outcome.err());
}

#[test]
fn a_template_that_takes_more_steps_than_it_may_is_stopped() {
    let loops = |count: usize| {
        format!("{{% for a in range({count}) %}}{{% for b in range({count}) %}}{{% endfor %}}{{% endfor %}}")
    };
    assert!(rendered(&loops(100), FEW_STEPS).is_ok());
    assert_stopped(&loops(1000), FEW_STEPS);
    assert_stopped("{{ range(5000)|unique|list|length }}", FEW_STEPS);
    let error = Template::new(&loops(99_999)).unwrap().render(&Map::new(), &no_clock).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
}

/// The bounds of texts, lists and nesting, which are the same whatever the number of steps.
#[test]
fn doubling_and_nested_values_are_stopped() {
    for template in [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set ns = namespace(t='ab') %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        "{% set ns = namespace(t='ab') %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
        "{% set ns = namespace(t='a') %}{% for i in range(99) %}{% set ns.t = ns.t|replace('a', 'aa') %}{% endfor %}",
        "{% set ns = namespace(t='a') %}{% for i in range(99) %}{% set ns.t = ns.t.replace('a', 'aa') %}{% endfor %}",
        "{% set ns = namespace(t=['a']) %}{% for i in range(99) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}",
        "{% set ns = namespace(t=['a']) %}{% for i in range(99) %}{% set ns.t = {'a': ns.t, 'b': ns.t} %}{% endfor %}",
        "{% set ns = namespace(t=[]) %}{% for i in range(9999) %}{% set ns.t = [ns.t] %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.t = ns %}{{ ns }}",
        "{% set ns = namespace(t=none) %}{% for i in range(99999) %}{% set ns.t = namespace(t=ns.t) %}{% endfor %}",
        "{{ 'a' * 99999999 }}",
        "{{ [1] * 99999999 }}",
        "{{ '%99999999d' % 1 }}",
        "{{ '%.99999999f' % 1 }}",
        "{{ '{:99999999}'.format(1) }}",
        "{{ '{:.99999f}'.format(1.5) }}",
        "{{ 'a'.center(99999999) }}",
        "{{ 'a'|center(99999999) }}",
        "{{ 'a'|indent(99999999) }}",
        "{{ [1]|tojson(indent=99999999) }}",
        "{{ '\t'.expandtabs(99999999) }}",
        "{{ 7 ** 999 }}",
        "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% set ns.t = [ns.t]|select %}{% endfor %}",
        "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% set ns.t = [ns.t].index %}{% endfor %}",
        "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% set ns.t = cycler(ns.t) %}{% endfor %}",
        "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% for x in [ns.t] %}{% set ns.t = loop %}{% endfor %}{% endfor %}",
        "{{ ('a ' * 5000000).split()|length }}{{ ('a ' * 5000000)|list }}",
    ] {
        assert_stopped(template, MAX_STEPS);
    }
}

/// Each template reads a large value in every turn of a loop, and the result is small. The loop itself takes
/// few steps, so that what is read must be charged.
#[test]
fn reading_large_values_over_and_over_is_stopped() {
    let used = |setup: &str, read: &str| {
        format!("{setup}{{% for i in range(1000) %}}{{% set x = {read} %}}{{% endfor %}}")
    };
    let kept = |setup: &str, read: &str| {
        format!(
            "{setup}{{% for i in range(1000) %}}{{% set x %}}{{{{ {read} }}}}{{% endset %}}{{% endfor %}}"
        )
    };
    let text = "{% set t = 'ab' * 40000 %}";
    let list = "{% set t = ['ab'] * 9000 %}";
    let texts = "{% set t = ['ab' * 40000] %}";
    let tree = "{% set ns = namespace(t=[1, 2]) %}{% for i in range(10) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}\
                {% set t = ns.t %}{% set u = [ns.t, 0][0:1][0] + [] %}";
    for setup in [text, list, texts, tree] {
        for template in [used(setup, "1"), kept(setup, "1")] {
            assert!(rendered(&template, FEW_STEPS).is_ok(), "{template}");
        }
    }
    for (setup, read) in [
        (text, "t|length"),
        (text, "t[-1]"),
        (text, "t is upper"),
        (text, "'%.0s' % t"),
        (text, "'%.0s'|format(t)"),
        (text, "t.count('x')"),
        (text, "'x' in t"),
        (text, "t == 'ab' * 40000"),
        (text, "'{:.0}'.format(t)"),
        (text, "[t]|map('length')|list"),
        (text, "[t]|select('upper')|list"),
        (list, "''.join(t)|length"),
        (list, "t|join|length"),
        (list, "t|last in t[1:]"),
        (list, "'x' in t"),
        (list, "t.count('x')"),
        (list, "t|unique|first"),
        (list, "t|sort|first"),
        (texts, "'%.0s' % t"),
        (texts, "t|wordcount"),
        (texts, "t|string|length"),
        (texts, "(t ~ '')|length"),
        (tree, "t == u"),
        (tree, "t is eq(u)"),
        (tree, "t in [u, u]"),
        (tree, "[t, t]|select('equalto', u)|list|length"),
        (tree, "t|tojson|length"),
        (tree, "[t].index(u)"),
    ] {
        assert_stopped(&used(setup, read), FEW_STEPS);
        assert_stopped(&kept(setup, read), FEW_STEPS);
    }
}

#[test]
fn expressions_within_expressions_are_bounded() {
    for (open, close) in [("(", ")"), ("[", "]"), ("-", ""), ("not ", ""), ("x[", "]"), ("x(", ")")] {
        let deep = format!("{{{{ {}1{} }}}}", open.repeat(100_000), close.repeat(100_000));
        assert_eq!(Template::new(&deep).unwrap_err().kind(), ErrorKind::Syntax, "{open}");
    }
    for link in [".a", "[0]", "()", "|trim", " + 1", " * 1", " ** 1", " or 1", " and 1", " if 1"] {
        let long = format!("{{{{ x{} }}}}", link.repeat(100_000));
        assert_eq!(Template::new(&long).unwrap_err().kind(), ErrorKind::Syntax, "{link}");
    }
    let blocks = "{% if 1 %}".repeat(100_000) + &"{% endif %}".repeat(100_000);
    assert_eq!(Template::new(&blocks).unwrap_err().kind(), ErrorKind::Syntax);
}

#[test]
fn a_source_that_is_too_long_is_not_parsed() {
    assert!(Template::new(&"a".repeat(MAX_SOURCE_BYTES)).is_ok());
    let error = Template::new(&"a".repeat(MAX_SOURCE_BYTES + 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget);
    assert_eq!(error.to_string(), "the template has more than 4194304 bytes");
}

#[test]
fn a_long_conversation_stays_far_below_the_bounds() {
    let role = |turn: usize| if turn.is_multiple_of(2) { "user" } else { "assistant" };
    let turn = |turn: usize| json!({"role": role(turn), "content": "word ".repeat(99)});
    let messages: Vec<Value> = (0..1000).map(turn).collect();
    let variables: Map<_, _> = [("messages".to_owned(), messages.into())].into_iter().collect();
    let template = "{% set ns = namespace(all=[], last=0) %}{% for m in messages %}{% set ns.all = ns.all + [m] %}\
                    {% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}\
                    {% for m in ns.all %}{% if loop.index0 < messages|length %}<{{ m.role }}>\
                    {{ m.content|trim }}{{ (messages|last).role[0] }}{% endif %}{% endfor %}{{ ns.last }}";
    let template = Template::new(template).unwrap();
    let rendered = template.render_within(&variables, &no_clock, MAX_STEPS / 20).unwrap();
    assert!(rendered.text.ends_with("worda998") && rendered.text.len() > 480_000);
}
