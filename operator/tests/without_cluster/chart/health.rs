//! Argo CD's health script, run on the fixtures in Argo CD's own form.

use mlua::{Lua, LuaSerdeExt as _};
use serde_json::Value;

#[test]
fn argo_cd_sees_a_job_as_people_would() {
    let folder = super::root().join("charts/rl-operator/argocd");
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap();
    let parse = |path: &str| serde_saphyr::from_str::<Value>(&read(path)).unwrap();
    let script = read("health.lua");
    let cases = parse("health_test.yaml");
    let cases = cases["tests"].as_array().unwrap();
    assert!(cases.len() >= 9);
    for case in cases {
        let path = case["inputPath"].as_str().unwrap();
        let lua = Lua::new();
        lua.globals().set("obj", lua.to_value(&parse(path)).unwrap()).unwrap();
        let answer: mlua::Value = lua.load(&script).eval().unwrap();
        let answer: Value = lua.from_value(answer).unwrap();
        assert_eq!(answer, case["healthStatus"], "{path}");
    }
}
