//! The start-up stub: creates the profile file or opens it, checks that it is ours, and maps it over the counters.
//!
//! **Several processes at once.** All of one instrumented program write the same header and descriptor, and the magic number
//! last; a file of the right size without a magic number is one that another process is making, and is filled again with the
//! same bytes. A file lock keeps out programs of another plan that create the same path at the same moment; where locks are not
//! supported, the rest still holds.
//!
//! **Not mapped** is a file that is no regular file, has another size or another header (another program's, or of another plan),
//! or that there is no room for: blocks are reserved before mapping, since a hole that the disk has no room for would be a
//! `SIGBUS` at an increment, and the file size limit is asked for first, since exceeding it would be a `SIGXFSZ`. Where the
//! final `mmap` fails the zero pages that it may have unmapped are put back.
//!
//! **State.** At the entry of a process `rsp` points to the argument count and `rdx` holds a function for `atexit` (psABI
//! §3.4.1): all registers and flags are restored, and memory above `rsp` is not written. System calls change `rax`, `rcx` and
//! `r11` (psABI §A.2.1).

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::RuntimeLayout;
use super::assemble::{encode_error, finish, lea, new_assembler, push_jump};
use crate::error::{Error, Result};
use crate::format::{HEADER_BYTES, Header};
use lifter::Va;

pub(super) const LEN_MAX: u32 = 640;

const SYS_CLOSE: u32 = 3;
const SYS_FSTAT: u32 = 5;
const SYS_MMAP: u32 = 9;
const SYS_PREAD64: u32 = 17;
const SYS_PWRITE64: u32 = 18;
const SYS_FLOCK: u32 = 73;
const SYS_FTRUNCATE: u32 = 77;
const SYS_GETRLIMIT: u32 = 97;
const SYS_OPENAT: u32 = 257;
const SYS_FALLOCATE: u32 = 285;

const AT_FDCWD: i32 = -100;
/// `O_RDWR | O_CREAT | O_NOCTTY | O_CLOEXEC`.
const OPEN_FLAGS: u32 = 0o2 | 0o100 | 0o400 | 0o2000000;
const OPEN_MODE: u32 = 0o666;
const LOCK_EX: u32 = 2;
const LOCK_UN: u32 = 8;
const RLIMIT_FSIZE: u32 = 1;
const PROT_READ_WRITE: u32 = 3;
const MAP_SHARED_FIXED: u32 = 0x01 | 0x10;
const MAP_PRIVATE_FIXED_ANONYMOUS: u32 = 0x02 | 0x10 | 0x20;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;
const S_IFMT: u32 = 0o170000;
const S_IFREG: i32 = 0o100000;

/// `struct stat` or `struct rlimit` at `rsp`, then the file's header.
const STAT_BYTES: i32 = 144;
const STAT_MODE: i32 = 24;
const STAT_SIZE: i32 = 48;
const FRAME_BYTES: i32 = STAT_BYTES + HEADER_BYTES as i32;

/// All general registers but `rsp`, in the order they are pushed.
const SAVED: [AsmRegister64; 15] = [rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15];

/// What the code needs to know of the file.
struct Sizes {
    file_len: u32,
    counters_len: u32,
    counters_offset: u32,
    blob_len: u32,
}

pub(super) fn build(layout: &RuntimeLayout, header: &Header) -> Result<Vec<u8>> {
    let small = |value: u64| {
        let fits = u32::try_from(value).ok().filter(|&v| v <= i32::MAX as u32);
        fits.ok_or_else(|| Error::malformed("header", "the profile file would be larger than 2 GiB"))
    };
    let sizes = Sizes {
        file_len: small(header.file_len())?,
        counters_len: small(header.counters_len())?,
        counters_offset: small(header.counters_offset)?,
        blob_len: small(HEADER_BYTES + header.descriptor_len)?,
    };
    let mut a = new_assembler(layout.at)?;
    emit(&mut a, layout, &sizes).map_err(|e| encode_error(layout.at, e))?;
    let mut bytes = finish(a, layout.at)?;
    push_jump(&mut bytes, layout.at, layout.original_entry)?;
    Ok(bytes)
}

/// Where the steps go on.
struct Labels {
    create: CodeLabel,
    write: CodeLabel,
    map: CodeLabel,
    close: CodeLabel,
    restore: CodeLabel,
}

fn emit(a: &mut CodeAssembler, layout: &RuntimeLayout, sizes: &Sizes) -> Result<(), IcedError> {
    let mut labels = Labels {
        create: a.create_label(),
        write: a.create_label(),
        map: a.create_label(),
        close: a.create_label(),
        restore: a.create_label(),
    };
    a.endbr64()?;
    a.pushfq()?;
    for register in SAVED {
        a.push(register)?;
    }
    a.sub(rsp, FRAME_BYTES)?;
    a.cld()?;
    emit_open(a, layout.path_at(), &labels)?;
    emit_inspect(a, layout, sizes, &labels)?;
    a.set_label(&mut labels.create)?;
    emit_create(a, sizes, &labels)?;
    a.set_label(&mut labels.write)?;
    emit_write(a, layout, sizes, &labels)?;
    a.set_label(&mut labels.map)?;
    emit_map(a, layout, sizes, &labels)?;
    a.set_label(&mut labels.close)?;
    // A mapping would keep the lock beyond `close`.
    emit_lock(a, LOCK_UN)?;
    a.mov(edi, ebx)?;
    emit_call(a, SYS_CLOSE)?;
    a.set_label(&mut labels.restore)?;
    a.add(rsp, FRAME_BYTES)?;
    for register in SAVED.into_iter().rev() {
        a.pop(register)?;
    }
    a.popfq()
}

fn emit_call(a: &mut CodeAssembler, number: u32) -> Result<(), IcedError> {
    a.mov(eax, number)?;
    a.syscall()
}

/// Leaves the descriptor in `ebx`.
fn emit_open(a: &mut CodeAssembler, path_at: Va, labels: &Labels) -> Result<(), IcedError> {
    a.mov(edi, AT_FDCWD)?;
    lea(a, rsi, path_at)?;
    a.mov(edx, OPEN_FLAGS)?;
    a.mov(r10d, OPEN_MODE)?;
    emit_call(a, SYS_OPENAT)?;
    a.test(eax, eax)?;
    a.js(labels.restore)?;
    a.mov(ebx, eax)?;
    // Failure is of no consequence: see the module's comment.
    emit_lock(a, LOCK_EX)
}

fn emit_lock(a: &mut CodeAssembler, operation: u32) -> Result<(), IcedError> {
    a.mov(edi, ebx)?;
    a.mov(esi, operation)?;
    emit_call(a, SYS_FLOCK)
}

/// Goes to `create` for an empty file, to `write` for one without a magic number, to `map` for ours, to `close` for any other.
fn emit_inspect(a: &mut CodeAssembler, layout: &RuntimeLayout, sizes: &Sizes, labels: &Labels) -> Result<(), IcedError> {
    a.mov(edi, ebx)?;
    a.mov(rsi, rsp)?;
    emit_call(a, SYS_FSTAT)?;
    a.test(rax, rax)?;
    a.jne(labels.close)?;
    a.mov(eax, dword_ptr(rsp + STAT_MODE))?;
    a.and(eax, S_IFMT as i32)?;
    a.cmp(eax, S_IFREG)?;
    a.jne(labels.close)?;
    a.mov(rcx, qword_ptr(rsp + STAT_SIZE))?;
    a.test(rcx, rcx)?;
    a.je(labels.create)?;
    a.cmp(rcx, sizes.file_len as i32)?;
    a.jne(labels.close)?;
    a.mov(edi, ebx)?;
    a.lea(rsi, qword_ptr(rsp + STAT_BYTES))?;
    a.mov(edx, HEADER_BYTES as u32)?;
    a.xor(r10d, r10d)?;
    emit_call(a, SYS_PREAD64)?;
    a.cmp(rax, HEADER_BYTES as i32)?;
    a.jne(labels.close)?;
    a.cmp(qword_ptr(rsp + STAT_BYTES), 0)?;
    a.je(labels.write)?;
    a.lea(rsi, qword_ptr(rsp + STAT_BYTES))?;
    lea(a, rdi, layout.header_blob_at)?;
    a.mov(ecx, HEADER_BYTES as u32 / 8)?;
    a.repe().cmpsq()?;
    a.jne(labels.close)?;
    a.jmp(labels.map)
}

/// Gives an empty file its size, with blocks on the disk behind it where the file system can promise them.
fn emit_create(a: &mut CodeAssembler, sizes: &Sizes, labels: &Labels) -> Result<(), IcedError> {
    let mut truncate = a.create_label();
    a.mov(edi, RLIMIT_FSIZE)?;
    a.mov(rsi, rsp)?;
    emit_call(a, SYS_GETRLIMIT)?;
    a.test(rax, rax)?;
    a.jne(labels.close)?;
    a.cmp(qword_ptr(rsp), sizes.file_len as i32)?;
    a.jb(labels.close)?;
    a.mov(edi, ebx)?;
    a.xor(esi, esi)?;
    a.xor(edx, edx)?;
    a.mov(r10d, sizes.file_len)?;
    emit_call(a, SYS_FALLOCATE)?;
    a.test(rax, rax)?;
    a.je(labels.write)?;
    a.cmp(rax, -EOPNOTSUPP)?;
    a.je(truncate)?;
    a.cmp(rax, -ENOSYS)?;
    a.jne(labels.close)?;
    a.set_label(&mut truncate)?;
    a.mov(edi, ebx)?;
    a.mov(esi, sizes.file_len)?;
    emit_call(a, SYS_FTRUNCATE)?;
    a.test(rax, rax)?;
    a.jne(labels.close)
}

/// Writes everything but the magic number, then the magic number.
fn emit_write(a: &mut CodeAssembler, layout: &RuntimeLayout, sizes: &Sizes, labels: &Labels) -> Result<(), IcedError> {
    for (from, to) in [(8, sizes.blob_len), (0, 8)] {
        a.mov(edi, ebx)?;
        lea(a, rsi, layout.header_blob_at + u64::from(from))?;
        a.mov(edx, to - from)?;
        a.mov(r10d, from)?;
        emit_call(a, SYS_PWRITE64)?;
        a.cmp(rax, (to - from) as i32)?;
        a.jne(labels.close)?;
    }
    Ok(())
}

fn emit_map(a: &mut CodeAssembler, layout: &RuntimeLayout, sizes: &Sizes, labels: &Labels) -> Result<(), IcedError> {
    let mapping = |a: &mut CodeAssembler, flags: u32| -> Result<(), IcedError> {
        lea(a, rdi, layout.counters_at)?;
        a.mov(esi, sizes.counters_len)?;
        a.mov(edx, PROT_READ_WRITE)?;
        a.mov(r10d, flags)
    };
    mapping(a, MAP_SHARED_FIXED)?;
    a.mov(r8d, ebx)?;
    a.mov(r9d, sizes.counters_offset)?;
    emit_call(a, SYS_MMAP)?;
    lea(a, rdi, layout.counters_at)?;
    a.cmp(rax, rdi)?;
    a.je(labels.close)?;
    mapping(a, MAP_PRIVATE_FIXED_ANONYMOUS)?;
    a.mov(r8, -1i64)?;
    a.xor(r9d, r9d)?;
    emit_call(a, SYS_MMAP)
}
