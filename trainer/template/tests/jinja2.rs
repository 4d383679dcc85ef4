//! Equality with jinja2 as transformers configures it, on templates that it rendered (`fixtures/make.py`).

mod hostile;
mod trl;

use std::collections::BTreeMap;

use rlt_template::Template;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Group {
    variables: Vec<Map<String, Value>>,
    /// Templates with the text for each set of variables: `None` where jinja2 raised, `false` where the text
    /// is not compared.
    cases: Vec<(String, Vec<Value>)>,
}

fn rendered(template: &str, variables: &Map<String, Value>) -> Result<String, String> {
    let template = Template::new(template).map_err(|error| error.to_string())?;
    let rendered = template.render(variables, &|_| Err("no clock".to_owned()));
    rendered.map(|rendered| rendered.text).map_err(|error| error.to_string())
}

/// Every text, and every template that fails.
#[test]
fn templates_render_as_jinja2_renders_them() {
    let groups: BTreeMap<String, Group> = serde_json::from_str(include_str!("fixtures/cases.json")).unwrap();
    let mut compared = 0;
    let mut differences = Vec::new();
    for (name, group) in groups {
        for (template, texts) in &group.cases {
            assert_eq!(texts.len(), group.variables.len());
            for (variables, text) in group.variables.iter().zip(texts) {
                if *text == Value::Bool(false) {
                    continue;
                }
                compared += 1;
                let ours = rendered(template, variables);
                let differs = match (text.as_str(), &ours) {
                    (Some(text), Ok(ours)) => text != ours,
                    (None, Err(_)) => false,
                    _ => true,
                };
                if differs {
                    let variables = if name == "chats" { String::new() } else { format!("{variables:?}") };
                    differences
                        .push(format!("{template}\n  {variables}\n  jinja2 {text:?}\n  ours   {ours:?}"));
                }
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
    let count = differences.len();
    // One of each template.
    differences.dedup_by_key(|difference| difference.lines().next().map(str::to_owned));
    assert!(count == 0, "{count} of {compared} differ:\n{}", differences.join("\n"));
}
