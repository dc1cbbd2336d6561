//! Training on two hosts, made of network namespaces that a wire joins: a pair of virtual devices, or two tunnels whose
//! packets this test carries, late and not all of them. So what TCP does about delay and loss is the kernel's own work.
#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::support::{Reference, train_reference, training};
use graphc_ir::random::RandomStream;

/// Runs `ip`; whether it could.
fn ip(line: &str) -> bool {
    let status = Command::new("ip").args(line.split(' ')).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Two hosts; nothing where the system lets nobody make them.
struct Hosts([String; 2]);

impl Hosts {
    fn new(name: &str) -> Option<Self> {
        let of = |side: &str| format!("graphc-{name}-{side}-{}", std::process::id());
        let hosts = Self([of("a"), of("b")]);
        let made = hosts.0.iter().all(|host| {
            ip(&format!("netns add {host}")) && ip(&format!("-n {host} link set lo up"))
        });
        made.then_some(hosts)
    }

    /// Gives a host its address on the wire.
    fn connect(&self, host: usize, device: &str) -> bool {
        let name = &self.0[host];
        ip(&format!("-n {name} addr add 10.77.0.{}/24 dev {device}", host + 1))
            && ip(&format!("-n {name} link set {device} up"))
    }

    /// Joins them by a pair of devices.
    fn join(&self) -> bool {
        let ([a, b], id) = (&self.0, std::process::id());
        ip(&format!("link add va{id} netns {a} type veth peer name vb{id} netns {b}"))
            && self.connect(0, &format!("va{id}"))
            && self.connect(1, &format!("vb{id}"))
    }

    /// Trains on both, one process each. The metrics file.
    fn train(&self) -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let metrics = folder.path().join("losses.jsonl");
        let args = [training("gpt", &["--mesh", "2"]), Reference::load("gpt").args].concat();
        let graphc = env!("CARGO_BIN_EXE_graphc");
        let start = |node: usize| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.0[node], graphc, "launch", "--nnodes", "2"]);
            command.args(["--node-rank", &node.to_string(), "--nproc-per-node", "1"]);
            command.args(["--master-addr", "10.77.0.1", "--", graphc]).args(&args);
            command.args(["--metrics".as_ref(), metrics.as_os_str()]).stdout(Stdio::null());
            command.stderr(Stdio::piped()).spawn().expect("ip starts")
        };
        for child in [start(0), start(1)] {
            let output = child.wait_with_output().expect("a child");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{stderr}");
        }
        std::fs::read(metrics).expect("metrics")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.0.iter().for_each(|host| {
            ip(&format!("netns del {host}"));
        });
    }
}

/// Makes one end of a tunnel: what it reads the host has sent, what it writes comes to the host. It is made here and then given to the
/// host's namespace.
fn tunnel(hosts: &Hosts, host: usize) -> Option<File> {
    let device = format!("gt{host}-{}", std::process::id());
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").ok()?;
    let mut request = [0_u8; 40];
    request[..device.len()].copy_from_slice(device.as_bytes());
    // Bare IP packets, without a head of the driver's own.
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    request[16..18].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the request is a `struct ifreq`, 40 bytes of which the call reads and writes.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, request.as_mut_ptr()) };
    let given = made == 0 && ip(&format!("link set {device} netns {}", hosts.0[host]));
    (given && hosts.connect(host, &device)).then_some(file)
}

/// The numbers of packets that a wire has carried and lost.
#[derive(Default)]
struct Counts {
    carried: AtomicU64,
    lost: AtomicU64,
}

/// Carries what comes from one tunnel to the other, so much later, and loses one packet in so many. Ends with the tunnels.
fn carry(mut from: File, to: File, (delay, one_in): (Duration, u32), counts: Arc<Counts>) {
    let (sender, receiver) = channel();
    std::thread::spawn(move || deliver(to, &receiver));
    std::thread::spawn(move || {
        let drawn = RandomStream { seed: 11, key: u64::from(one_in), step: 0 };
        let mut packet = [0; 2048];
        let mut number = 0;
        while let Ok(bytes) = from.read(&mut packet) {
            number += 1;
            if drawn.words(number)[0].is_multiple_of(one_in) {
                counts.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            counts.carried.fetch_add(1, Ordering::Relaxed);
            if sender.send((Instant::now() + delay, packet[..bytes].to_vec())).is_err() {
                return;
            }
        }
    });
}

fn deliver(mut to: File, packets: &Receiver<(Instant, Vec<u8>)>) {
    for (when, packet) in packets {
        std::thread::sleep(when.saturating_duration_since(Instant::now()));
        if to.write(&packet).is_err() {
            return; // the namespace is gone
        }
    }
}

#[test]
fn two_hosts_give_the_bits_of_threads() {
    let Some(hosts) = Hosts::new("near").filter(Hosts::join) else {
        return eprintln!("no network namespaces here: nothing was tested");
    };
    assert!(hosts.train() == train_reference("gpt", &["--mesh", "2"]), "other bits than threads");
}

#[test]
fn two_hosts_far_apart_on_a_wire_that_loses_packets_give_the_same_bits() {
    let Some(hosts) = Hosts::new("far") else {
        return eprintln!("no network namespaces here: nothing was tested");
    };
    let Some((a, b)) = tunnel(&hosts, 0).zip(tunnel(&hosts, 1)) else {
        return eprintln!("no tunnels here: delay and loss were not tested");
    };
    let counts = Arc::new(Counts::default());
    let copy = |file: &File| file.try_clone().expect("a descriptor");
    // As netem on one of the devices would: 20 ms more for each way there and back, of a hundred packets one lost.
    carry(copy(&a), copy(&b), (Duration::from_millis(20), 100), Arc::clone(&counts));
    carry(b, a, (Duration::ZERO, 100), Arc::clone(&counts));
    let begun = Instant::now();
    let metrics = hosts.train();
    let [carried, lost] = [&counts.carried, &counts.lost].map(|n| n.load(Ordering::Relaxed));
    assert!(metrics == train_reference("gpt", &["--mesh", "2"]), "other bits than threads");
    // Every step takes at least one way there and back; and something was lost.
    let steps = u32::try_from(Reference::load("gpt").steps()).expect("few");
    assert!(begun.elapsed() > Duration::from_millis(20) * steps, "{:?}", begun.elapsed());
    assert!(carried > 1000 && lost > 0, "{carried} packets carried, {lost} lost");
}
