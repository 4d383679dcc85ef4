//! The fibers themselves: tests by them are worth something only if a wrong kernel fails under them.

use std::process::Command;

use rlt_devices::StandIn;

#[test]
fn a_missing_barrier_is_found_an_unreached_one_ends_the_process_and_one_exchange_reduces_as_five() {
    let program = StandIn::build().unwrap().fibers_probe();
    let output = Command::new(&program).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "256 wrong\n".repeat(5) + "equal\n");
    let output = Command::new(&program).arg("diverge").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && message.contains("32 of 64 threads of block 0,0,0"), "{message}");
}
