//! The runtime run for real: small static programs, made here byte by byte, count into files and are looked at afterwards.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, IcedError, Instruction};
use lifter::Va;
use tempfile::TempDir;

use super::*;
use crate::format::{CallDescriptor, Descriptor, FuncDescriptor, ProfileFile, Site, Target};

const LOOPS: u64 = 1000;
const BASE: u64 = 0x40_0000;
const CODE_AT: u64 = BASE + 0x1000;
const RUNTIME_AT: u64 = BASE + 0x3000;
const BLOB_AT: u64 = BASE + 0x5000;
const COUNTERS_AT: u64 = BASE + 0x10_0000;

/// How a test program ends.
#[derive(Copy, Clone, PartialEq)]
enum Ending {
    Exit,
    KillItself,
    /// Three times before its loop, then all wait for their children.
    Fork,
}

fn descriptor(plan_salt: u64) -> Descriptor {
    let call = CallDescriptor { block_offset: 0, offset: 4, len: 2 };
    let func = FuncDescriptor {
        name: "test".into(),
        content_hash: plan_salt,
        sites: vec![Site::Block { offset: 0 }, Site::Block { offset: 8 }],
        calls: vec![call; 3],
        ..FuncDescriptor::default()
    };
    Descriptor { identity: [1, 2], funcs: vec![func] }
}

fn layout() -> RuntimeLayout {
    RuntimeLayout {
        at: Va(RUNTIME_AT),
        header_blob_at: Va(BLOB_AT),
        counters_at: Va(COUNTERS_AT),
        image_low: Va(BASE),
        image_high: Va(COUNTERS_AT + 0x1000),
        original_entry: Va(CODE_AT + FAIL_BYTES),
    }
}

/// Code that grows at its end.
struct Text {
    bytes: Vec<u8>,
}

impl Text {
    fn end(&self) -> Va {
        Va(CODE_AT + self.bytes.len() as u64)
    }
    fn asm(&mut self, emit: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>) {
        let mut a = CodeAssembler::new(64).unwrap();
        emit(&mut a).unwrap();
        self.bytes.extend(a.assemble(self.end().0).unwrap());
    }
    fn counter(&mut self, counter: u32, preserve_flags: bool) {
        self.bytes.extend(counter_snippet(layout().counter_at(counter), self.end(), preserve_flags).unwrap());
    }
    fn record(&mut self, call: &[u8], site: u32) {
        let call = decode(call);
        self.bytes.extend(call_site_snippet(&call, None, site, layout().record_at(), self.end()).unwrap());
    }
    /// Leaves with status 9 unless the last comparison was equal.
    fn expect_equal(&mut self) {
        self.asm(|a| a.jne(CODE_AT));
    }
}

/// The code at `CODE_AT` for a check that failed.
const FAIL_BYTES: u64 = 16;

fn exit(a: &mut CodeAssembler, status: u32) -> Result<(), IcedError> {
    a.mov(edi, status)?;
    a.mov(eax, 60u32)?;
    a.syscall()
}

fn decode(bytes: &[u8]) -> Instruction {
    Decoder::with_ip(64, bytes, 0x1234, DecoderOptions::NONE).decode()
}

/// Counts 1000 loops with both kinds of counter and records three calls in each, checking that registers, flags, red zone and
/// stack stay.
fn program(ending: Ending) -> Vec<u8> {
    let mut text = Text { bytes: Vec::new() };
    text.asm(|a| exit(a, 9));
    text.bytes.resize(FAIL_BYTES as usize, 0xcc);
    text.asm(|a| {
        // Argument count, and the registers that the kernel clears.
        a.mov(rax, qword_ptr(rsp))?;
        for register in [rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15] {
            a.or(rax, register)?;
        }
        a.cmp(rax, 1)
    });
    text.expect_equal();
    for _ in 0..if ending == Ending::Fork { 3 } else { 0 } {
        text.asm(|a| {
            a.mov(eax, 57u32)?;
            a.syscall()
        });
    }
    text.asm(|a| {
        a.mov(r12d, LOOPS as u32)?;
        a.mov(r14, rsp)?;
        // The target of the first call, in memory where an operand relative to rsp finds it.
        super::assemble::lea(a, rbx, Va(CODE_AT))?;
        a.mov(qword_ptr(rsp - 64), rbx)
    });
    let loop_start = text.end().0;
    text.counter(0, false);
    text.asm(|a| {
        a.mov(qword_ptr(rsp - 8), r12)?;
        a.mov(qword_ptr(rsp - 128), r12)?;
        a.mov(rax, r12)?;
        a.mov(rcx, r12)?;
        a.mov(rdx, r12)?;
        a.mov(rdi, r12)?;
        a.mov(r13, r12)?;
        a.and(r13, 7)?;
        a.add(r13, rbx)?;
        a.mov(r15d, 1u32)?;
        a.cmp(r12, r12)?;
        a.stc()
    });
    text.counter(1, true);
    text.record(&[0xff, 0x54, 0x24, 0xc0], 0); // call [rsp-64]
    text.record(&[0x41, 0xff, 0xd5], 1); // call r13
    text.record(&[0x41, 0xff, 0xe7], 2); // jmp r15
    text.expect_equal();
    text.asm(|a| a.jae(CODE_AT));
    for register in [rax, rcx, rdx, rdi] {
        text.asm(|a| a.cmp(register, r12));
        text.expect_equal();
    }
    for offset in [8, 128] {
        text.asm(|a| a.cmp(qword_ptr(rsp - offset), r12));
        text.expect_equal();
    }
    text.asm(|a| a.cmp(rsp, r14));
    text.expect_equal();
    text.asm(|a| {
        a.dec(r12d)?;
        a.jne(loop_start)
    });
    match ending {
        Ending::Exit => text.asm(|a| exit(a, 7)),
        Ending::KillItself => text.asm(|a| {
            a.mov(eax, 39u32)?; // getpid
            a.syscall()?;
            a.mov(edi, eax)?;
            a.mov(esi, 9u32)?;
            a.mov(eax, 62u32)?; // kill
            a.syscall()
        }),
        Ending::Fork => {
            let wait = text.end().0;
            text.asm(|a| {
                a.mov(edi, -1i32)?;
                a.xor(esi, esi)?;
                a.xor(edx, edx)?;
                a.xor(r10d, r10d)?;
                a.mov(eax, 61u32)?; // wait4
                a.syscall()?;
                a.test(eax, eax)?;
                a.jns(wait)?;
                exit(a, 7)
            });
        }
    }
    text.bytes
}

/// An ELF file with one segment of code and one of zeros for the counters.
fn elf(is_position_independent: bool, ending: Ending, profile: &Path, plan_salt: u64) -> Vec<u8> {
    let (header, blob) = descriptor(plan_salt).encode();
    let runtime = build_runtime(&layout(), &header, profile.to_str().unwrap().as_bytes()).unwrap();
    let mut image = vec![0u8; (BLOB_AT - BASE) as usize];
    let code = program(ending);
    image[(CODE_AT - BASE) as usize..][..code.len()].copy_from_slice(&code);
    image[(RUNTIME_AT - BASE) as usize..][..runtime.len()].copy_from_slice(&runtime);
    image.extend_from_slice(&blob);
    let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    head.extend([if is_position_independent { 3u8 } else { 2 }, 0, 62, 0, 1, 0, 0, 0]);
    head.extend([RUNTIME_AT, 64, 0].iter().flat_map(|v| v.to_le_bytes()));
    head.extend([0u16, 0, 64, 56, 2, 0, 0, 0].iter().flat_map(|v| v.to_le_bytes()));
    let mut segment = |flags: u64, va: u64, file_len: u64, mem_len: u64| {
        let fields = [flags << 32 | 1, 0, va, va, file_len, mem_len, 0x1000];
        head.extend(fields.iter().flat_map(|v| v.to_le_bytes()));
    };
    segment(5, BASE, image.len() as u64, image.len() as u64);
    segment(6, COUNTERS_AT, 0, header.counters_len());
    image[..head.len()].copy_from_slice(&head);
    image
}

struct Sandbox {
    dir: TempDir,
}

impl Sandbox {
    fn new() -> Self {
        Sandbox { dir: TempDir::new().unwrap() }
    }
    fn profile(&self) -> PathBuf {
        self.dir.path().join("test.rlp")
    }
    fn install(&self, name: &str, elf: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        // Written by another process: a file that this one has open for writing while a neighboring test forks can't be executed.
        let staged = self.dir.path().join(format!("{name}.staged"));
        std::fs::write(&staged, elf).unwrap();
        let status = Command::new("install").arg("-m755").arg(&staged).arg(&path).status().unwrap();
        assert!(status.success());
        path
    }
    fn run(&self, elf: &[u8]) -> ExitStatus {
        Command::new(self.install("program", elf)).status().unwrap()
    }
    fn read(&self) -> ProfileFile {
        ProfileFile::read(&std::fs::read(self.profile()).unwrap()).unwrap()
    }
}

#[test]
fn an_instrumented_program_counts_into_its_file_and_behaves_the_same() {
    for is_position_independent in [false, true] {
        let sandbox = Sandbox::new();
        let status = sandbox.run(&elf(is_position_independent, Ending::Exit, &sandbox.profile(), 5));
        assert_eq!(status.code(), Some(7));
        let file = sandbox.read();
        assert_eq!(file.descriptor, descriptor(5));
        assert_eq!(file.counters, [LOOPS, LOOPS]);
        assert_eq!(file.calls[0].targets, [(Target::Image(CODE_AT - BASE), LOOPS)]);
        let recorded: u64 = file.calls[1].targets.iter().map(|t| t.1).sum();
        assert_eq!((file.calls[1].targets.len(), recorded, file.calls[1].other), (4, LOOPS / 2, LOOPS / 2));
        assert_eq!(file.calls[2].targets, [(Target::External, LOOPS)]);
    }
}

#[test]
fn runs_add_up_and_so_do_runs_at_the_same_time() {
    let sandbox = Sandbox::new();
    let program = sandbox.install("program", &elf(true, Ending::Exit, &sandbox.profile(), 5));
    let mut children: Vec<_> = (0..16).map(|_| Command::new(&program).spawn().unwrap()).collect();
    assert!(children.iter_mut().all(|child| child.wait().unwrap().code() == Some(7)));
    assert_eq!(Command::new(&program).status().unwrap().code(), Some(7));
    let file = sandbox.read();
    assert_eq!(file.counters, [17 * LOOPS, 17 * LOOPS]);
    let recorded: u64 = file.calls[1].targets.iter().map(|t| t.1).sum();
    assert_eq!(recorded + file.calls[1].other, 17 * LOOPS);
}

#[test]
fn a_killed_program_leaves_its_counts() {
    use std::os::unix::process::ExitStatusExt;
    let sandbox = Sandbox::new();
    let status = sandbox.run(&elf(true, Ending::KillItself, &sandbox.profile(), 5));
    assert_eq!(status.signal(), Some(9));
    assert_eq!(sandbox.read().counters, [LOOPS, LOOPS]);
}

#[test]
fn forked_children_count_too() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(&elf(false, Ending::Fork, &sandbox.profile(), 5)).code(), Some(7));
    assert_eq!(sandbox.read().counters, [8 * LOOPS, 8 * LOOPS]);
}

#[test]
fn without_a_file_to_open_the_program_runs_all_the_same() {
    let sandbox = Sandbox::new();
    for path in ["/nonexistent/dir/test.rlp", "/dev/null", "/", "/proc/version"] {
        assert_eq!(sandbox.run(&elf(true, Ending::Exit, Path::new(path), 5)).code(), Some(7), "{path}");
    }
}

#[test]
fn a_file_of_another_plan_or_of_something_else_stays_as_it_is() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(&elf(true, Ending::Exit, &sandbox.profile(), 5)).code(), Some(7));
    let before = std::fs::read(sandbox.profile()).unwrap();
    assert_eq!(sandbox.run(&elf(true, Ending::Exit, &sandbox.profile(), 6)).code(), Some(7));
    assert_eq!(std::fs::read(sandbox.profile()).unwrap(), before);
    std::fs::write(sandbox.profile(), "my thesis").unwrap();
    assert_eq!(sandbox.run(&elf(true, Ending::Exit, &sandbox.profile(), 5)).code(), Some(7));
    assert_eq!(std::fs::read(sandbox.profile()).unwrap(), b"my thesis");
}

#[test]
fn a_file_that_is_being_made_is_finished_by_who_finds_it() {
    let sandbox = Sandbox::new();
    let (header, _) = descriptor(5).encode();
    std::fs::write(sandbox.profile(), vec![0; header.file_len() as usize]).unwrap();
    assert_eq!(sandbox.run(&elf(true, Ending::Exit, &sandbox.profile(), 5)).code(), Some(7));
    assert_eq!(sandbox.read().counters, [LOOPS, LOOPS]);
}

#[test]
fn a_file_size_limit_does_not_kill_the_program() {
    let sandbox = Sandbox::new();
    let program = sandbox.install("program", &elf(true, Ending::Exit, &sandbox.profile(), 5));
    let status = Command::new("sh").args(["-c", "ulimit -f 1; exec \"$0\""]).arg(program).status().unwrap();
    assert_eq!(status.code(), Some(7));
}

#[test]
fn lengths_do_not_depend_on_addresses() {
    let (header, _) = descriptor(5).encode();
    let far = RuntimeLayout {
        at: Va(0x1000),
        header_blob_at: Va(0x7000_0000),
        counters_at: Va(0x7100_0000),
        image_low: Va(0),
        image_high: Va(0x7200_0000),
        original_entry: Va(0x6fff_ff00),
    };
    for layout in [layout(), far] {
        assert_eq!(build_runtime(&layout, &header, b"/tmp/x").unwrap().len(), runtime_len(6));
    }
    let calls: [&[u8]; 6] = [
        &[0xff, 0xd0],
        &[0x41, 0xff, 0xd4],
        &[0xff, 0x15, 0, 1, 0, 0],
        &[0xff, 0x64, 0x24, 8],
        &[0x64, 0xff, 0x50, 8],
        &[0x3e, 0xff, 0xe0],
    ];
    for call in calls {
        let snippet = |record_at, at| call_site_snippet(&decode(call), None, 1, Va(record_at), Va(at)).unwrap().len();
        assert_eq!(snippet(0x40_0000, 0x41_0000), snippet(0x1000, 0x7000_0000), "{call:x?}");
    }
    for preserve_flags in [false, true] {
        let len = if preserve_flags { COUNTER_WITH_FLAGS_LEN } else { COUNTER_LEN };
        assert_eq!(counter_snippet(Va(0x1000), Va(0x7000_0000), preserve_flags).unwrap().len(), len);
    }
    assert!(counter_snippet(Va(0), Va(0x9000_0000), false).is_err());
}

#[test]
fn a_rip_relative_target_is_read_from_where_it_is_now() {
    let call = decode(&[0xff, 0x15, 0, 1, 0, 0]);
    let snippet = call_site_snippet(&call, Some(Va(0x50_0000)), 1, Va(0x40_0000), Va(0x41_0000)).unwrap();
    let push = Decoder::with_ip(64, &snippet[5..], 0x41_0005, DecoderOptions::NONE).decode();
    assert_eq!(push.mnemonic(), iced_x86::Mnemonic::Push);
    assert_eq!(push.ip_rel_memory_address(), 0x50_0000);
}

#[test]
fn calls_that_cannot_be_recorded_are_refused() {
    // call rsp; far call; call of a 32-bit stack address; a direct call.
    let calls: [&[u8]; 4] = [&[0xff, 0xd4], &[0xff, 0x18], &[0x67, 0xff, 0x14, 0x24], &[0xe8, 0, 0, 0, 0]];
    for call in calls {
        let refused = call_site_snippet(&decode(call), None, 0, Va(0x1000), Va(0x2000));
        assert!(matches!(refused, Err(Error::NotRecordable { at: Va(0x1234) })), "{call:x?}");
    }
}
