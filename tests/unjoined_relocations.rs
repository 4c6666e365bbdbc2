//! Tables of relocations that the linker keeps apart, one for each section (`-z nocombreloc`).

mod support;

use support::{RELOCATED, compile_text, every_form_does_the_same};

#[test]
fn what_they_relocate_leads_to_where_code_is_now() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for flags in [&["-pie", "-fPIE"][..], &["-pie", "-fPIE", "-s"], &["-no-pie"]] {
        let program = compile_text(RELOCATED, &[&["-O1", "-Wl,-z,nocombreloc"], flags].concat(), folder, "program");
        every_form_does_the_same(&program, &["1", "2", "3"], folder);
    }
}
