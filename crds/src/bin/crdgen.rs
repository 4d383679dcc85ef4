//! Writes the generated files: from the types the CustomResourceDefinition, the schema that checks manifests,
//! and the field reference; from the table of conflicts its page.

use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let definition = rlt_api::custom_resource_definition()?;
    fs::write(package.join("manifests/rltrainingjobs.yaml"), rlt_api::definition_yaml(&definition)?)?;
    fs::write(package.join("src/validate/spec_schema.json"), rlt_api::spec_schema_json(&definition)?)?;
    let docs = package.join("../docs");
    fs::create_dir_all(&docs)?;
    fs::write(docs.join("reference.md"), rlt_api::reference_markdown(&definition))?;
    fs::write(docs.join("support.md"), rlt_api::support_markdown())?;
    Ok(())
}
