//! Hostile templates: each takes more steps, memory or stack than any conversation, and ends in an error.

use rlt_template::{ErrorKind, Rendered, Template};
use serde_json::{Map, json};

fn rendered(template: &str) -> Result<Rendered, rlt_template::Error> {
    Template::new(template)?.render(&Map::new(), &|_| Err("no clock".to_owned()))
}

#[test]
fn endless_and_doubling_templates_are_stopped() {
    for template in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
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
        "{{ range(100000)|unique|list|length }}",
        "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% set ns.t = [ns.t]|select %}{% endfor %}",
        "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% set ns.t = [ns.t].index %}{% endfor %}",
        "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% set ns.t = cycler(ns.t) %}{% endfor %}",
        "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% for x in [ns.t] %}{% set ns.t = loop %}{% endfor %}{% endfor %}",
        "{{ ('a ' * 5000000).split()|length }}{{ ('a ' * 5000000)|list }}",
    ] {
        let Err(error) = rendered(template) else { panic!("{template} is rendered") };
        assert_eq!(error.kind(), ErrorKind::Budget, "{template}: {error}");
    }
}

/// Each template reads a large value in every turn of a loop, and the result is small.
#[test]
fn reading_large_values_over_and_over_is_stopped() {
    let text = "{% set t = 'ab' * 4000000 %}";
    let list = "{% set t = ['ab'] * 900000 %}";
    let texts = "{% set t = ['ab' * 4000000] %}";
    let tree = "{% set ns = namespace(t=[1, 2]) %}{% for i in range(16) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}\
                {% set t = ns.t %}{% set u = [ns.t, 0][0:1][0] + [] %}";
    for (setup, read) in [
        (text, "t|length"),
        (text, "t[-1]"),
        (text, "t is upper"),
        (text, "'%.0s' % t"),
        (text, "'%.0s'|format(t)"),
        (text, "t.count('x')"),
        (text, "'x' in t"),
        (text, "t == 'ab' * 4000000"),
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
        let template = format!(
            "{setup}{{% for i in range(99999) %}}{{% set x %}}{{{{ {read} }}}}{{% endset %}}{{% endfor %}}"
        );
        let Err(error) = rendered(&template) else { panic!("{template} is rendered") };
        assert_eq!(error.kind(), ErrorKind::Budget, "{template}: {error}");
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
fn a_long_conversation_stays_far_below_the_bounds() {
    let role = |turn: usize| if turn.is_multiple_of(2) { "user" } else { "assistant" };
    let turn = |turn: usize| json!({"role": role(turn), "content": "word ".repeat(99)});
    let messages: Vec<_> = (0..4000).map(turn).collect();
    let variables: Map<_, _> = [("messages".to_owned(), messages.into())].into_iter().collect();
    let template = "{% set ns = namespace(all=[], last=0) %}{% for m in messages %}{% set ns.all = ns.all + [m] %}\
                    {% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}\
                    {% for m in ns.all %}{% if loop.index0 < messages|length %}<{{ m.role }}>\
                    {{ m.content|trim }}{{ (messages|last).role[0] }}{% endif %}{% endfor %}{{ ns.last }}";
    let rendered =
        Template::new(template).unwrap().render(&variables, &|_| Err("no clock".to_owned())).unwrap();
    assert!(rendered.text.ends_with("worda3998") && rendered.text.len() > 1_900_000);
}
