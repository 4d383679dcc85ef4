//! Rule of the table of GPU kernels' requirements: it was generated from the present sources. Only the
//! compiler for GPUs can tell whether its numbers are right, and few machines have that compiler.

use std::process::Command;

use rlt_rules::workspace_root;

#[test]
fn the_table_of_what_kernels_need_was_made_from_the_present_sources() {
    let torch = workspace_root().join("trainer/torch");
    let output = Command::new("bash").arg(torch.join("build-kernels.sh")).arg("--digest").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let digest = String::from_utf8(output.stdout).unwrap();
    let line = format!("SHA-256 of the sources: `{}`\n", digest.trim());
    let table = std::fs::read_to_string(torch.join("csrc/cuda/resources.md")).unwrap();
    assert!(table.contains(&line), "kernels have changed: run `make kernels` and commit resources.md");
}
