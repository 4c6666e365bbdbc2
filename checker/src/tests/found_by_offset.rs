//! What readers of files find by its distance from the beginning, though program headers would say where it is.

use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build_with};
use super::*;

#[test]
fn tables_of_symbols_stay_as_far_from_the_file_as_from_memory() {
    // The last segment is that of data.
    const FLAGS: &str = "-pie -Wl,--hash-style=gnu -Wl,--export-dynamic -Wl,--section-start=.data=0x300000";
    for section in [".gnu.hash", ".dynsym", ".dynstr"] {
        let build = |more: &str| build_with(&[CLASSIFY, TWICE, UNUSED], TABLE, &format!("{FLAGS}{more}"));
        let at = |address: &str| build(&format!(" -Wl,--section-start={section}={address}"));
        let (Some(near), Some(far), Some(behind)) = (build(""), at("0x200000"), at("0x400000")) else { return };
        let is_seen = |input: &[u8], output: &[u8]| {
            let report = check(input, output).unwrap();
            report.violations.iter().any(|violation| violation.to_string().contains("not as far from the file's beginning"))
        };
        assert!(is_seen(&near, &far), "{section}");
        // Program headers may have pushed it out.
        assert!(!is_seen(&near, &behind), "{section}");
        assert!(!is_seen(&far, &far) && !is_seen(&near, &near), "{section}");
    }
}
