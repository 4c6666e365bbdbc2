//! Programs that are relinked but not run, because a run without arguments acts on the system or never shows anything.

use std::path::Path;

/// Program names, `*` at the end for any ending, and why they are not run.
const SKIPPED: [(&str, &str); 36] = [
    ("reboot", "stops the machine"),
    ("halt", "stops the machine"),
    ("shutdown", "stops the machine"),
    ("poweroff", "stops the machine"),
    ("init", "is the first process"),
    ("telinit", "talks to the first process"),
    ("runlevel", "talks to the first process"),
    ("systemd*", "is or talks to the first process"),
    ("systemctl", "talks to the first process"),
    ("mkfs*", "writes file systems"),
    ("mke2fs", "writes file systems"),
    ("mkswap", "writes file systems"),
    ("wipefs", "writes file systems"),
    ("fsck*", "repairs file systems"),
    ("e2fsck", "repairs file systems"),
    ("fdisk", "writes partition tables"),
    ("sfdisk", "writes partition tables"),
    ("cfdisk", "writes partition tables"),
    ("parted", "writes partition tables"),
    ("swapon", "changes the use of memory"),
    ("swapoff", "changes the use of memory"),
    ("insmod", "changes the kernel"),
    ("rmmod", "changes the kernel"),
    ("modprobe", "changes the kernel"),
    ("kmod", "changes the kernel"),
    ("kexec", "changes the kernel"),
    ("sysctl", "changes the kernel"),
    ("hwclock", "sets the clock"),
    ("sulogin", "takes over the terminal"),
    ("agetty", "takes over the terminal"),
    ("getty", "takes over the terminal"),
    ("killall*", "ends other programs"),
    ("switch_root", "replaces the root folder"),
    ("pivot_root", "replaces the root folder"),
    ("lsfd", "prints its own memory map"),
    ("df", "tells how full the disk is"),
];

/// Why a program is not run, if it is not.
pub(super) fn reason(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_string_lossy();
    let matches = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    };
    SKIPPED.iter().find(|(pattern, _)| matches(pattern)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stops_the_machine_is_not_run_and_a_list_of_files_is() {
        assert_eq!(reason(Path::new("/usr/sbin/halt")), Some("stops the machine"));
        assert_eq!(reason(Path::new("/usr/sbin/mkfs.ext4")), Some("writes file systems"));
        assert_eq!(reason(Path::new("/usr/bin/ls")), None);
    }
}
