//! Sections that are not loaded and that the program reads from its own file, by its section headers.

mod support;

use std::path::Path;

use support::{compile_text, every_form_does_the_same, relift, relift_succeeds, rewritten_does_the_same};

const PROGRAM: &str = r#"
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__asm__(".section payload, \"\"\n.ascii \"what the program carries\\n\"\n.section more, \"\", @0x80000001\n.ascii \"and more\\n\"\n.text\n");
static int print(int file, const char *wanted) {
    Elf64_Ehdr header;
    if (pread(file, &header, sizeof header, 0) != sizeof header || !header.e_shnum) return puts("no section headers"), 1;
    Elf64_Shdr *sections = malloc(header.e_shnum * sizeof *sections);
    pread(file, sections, header.e_shnum * sizeof *sections, header.e_shoff);
    Elf64_Shdr *names = &sections[header.e_shstrndx];
    char *text = malloc(names->sh_size);
    pread(file, text, names->sh_size, names->sh_offset);
    for (int i = 0; i < header.e_shnum; i++) {
        char content[64] = "";
        if (strcmp(text + sections[i].sh_name, wanted)) continue;
        pread(file, content, sections[i].sh_size, sections[i].sh_offset);
        return fputs(content, stdout), 0;
    }
    return printf("%s is not there\n", wanted), 1;
}
int main(void) {
    int file = open("/proc/self/exe", O_RDONLY);
    return print(file, "payload") + print(file, "more");
}
"#;

fn strips(program: &Path, folder: &Path) {
    rewritten_does_the_same(program, &["shrink", "--strip"], folder);
    let said = relift_succeeds(relift().args(["shrink", "--strip"]).arg(program).arg("-o").arg(folder.join("output")), folder);
    assert!(said.stderr_text().contains("section headers stay"), "{said:?}");
}

#[test]
fn the_program_finds_its_section_in_every_form() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for flags in [&["-pie", "-fPIE"][..], &["-no-pie"], &["-pie", "-fPIE", "-s"]] {
        let program = compile_text(PROGRAM, &[&["-O1", "-w"], flags].concat(), folder, "program");
        every_form_does_the_same(&program, &["1", "2"], folder);
        strips(&program, folder);
        // One after the other.
        let shuffled = folder.join("shuffled");
        relift_succeeds(relift().args(["optimize", "--shuffle", "3"]).arg(&program).arg("-o").arg(&shuffled), folder);
        strips(&shuffled, folder);
    }
}
