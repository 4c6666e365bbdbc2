//! What readers of files find by its distance from the beginning, though program headers would say where it is.

use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build_with};
use super::*;

#[test]
fn tables_of_symbols_stay_as_far_from_the_file_as_from_memory() {
    const FLAGS: &str = "-pie -Wl,--hash-style=gnu -Wl,--export-dynamic";
    let functions = [CLASSIFY, TWICE, UNUSED];
    for section in [".gnu.hash", ".dynsym", ".dynstr"] {
        let (Some(near), Some(far)) = (
            build_with(&functions, TABLE, FLAGS),
            build_with(&functions, TABLE, &format!("{FLAGS} -Wl,--section-start={section}=0x200000")),
        ) else {
            return;
        };
        let is_seen = |input: &[u8], output: &[u8]| {
            let report = check(input, output).unwrap();
            report.violations.iter().any(|violation| violation.to_string().contains("not as far from the file's beginning"))
        };
        assert!(is_seen(&near, &far), "{section}");
        assert!(!is_seen(&far, &far) && !is_seen(&near, &near), "{section}");
    }
}
