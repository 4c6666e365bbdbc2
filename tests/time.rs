//! Where the time went, for whoever asks.

mod support;

use std::path::Path;

use support::{relift, relift_succeeds, skipped};

#[test]
fn every_command_says_where_the_time_went_if_it_is_asked() {
    let program = Path::new("/usr/bin/gzip");
    if !program.exists() {
        return skipped("--time: there is no gzip");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = folder.path();
    let (output, profile) = (folder.join("output"), folder.join("profile"));
    let told = |arguments: &[&std::ffi::OsStr]| {
        let run = |time: Option<&str>| {
            let run = relift_succeeds(relift().args(arguments).args(time), folder);
            [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
        };
        let (with, without) = (run(Some("--time")), run(None));
        assert!(!without.contains("self s"), "{arguments:?}: {without}");
        with
    };
    let (program, output, profile) = (program.as_os_str(), output.as_os_str(), profile.as_os_str());
    let o = "-o".as_ref();
    for (arguments, phase) in [
        (&["shrink".as_ref(), program, o, output][..], "find dead code"),
        (&["check".as_ref(), program, output], "check"),
        (&["optimize".as_ref(), program, o, output, "--shuffle".as_ref(), "1".as_ref()], "relink"),
        (&["instrument".as_ref(), program, o, output, "--profile".as_ref(), profile], "read ELF"),
        (&["inspect".as_ref(), program], "read ELF"),
        (&["analyze".as_ref(), program], "read ELF"),
    ] {
        let told = told(arguments);
        assert!(told.contains("self s") && told.contains(phase), "{arguments:?}: {told}");
    }
}
