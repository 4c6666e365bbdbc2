use super::*;

#[test]
fn a_program_corresponds_to_itself() {
    for path in ["/usr/bin/xz", "/usr/bin/gzip", "/usr/bin/bzip2", "/usr/bin/ls"] {
        let Ok(file) = std::fs::read(path) else { continue };
        let report = check(&file, &file).unwrap();
        assert!(report.is_ok(), "{path}:\n{}", report.summary(10));
    }
}
