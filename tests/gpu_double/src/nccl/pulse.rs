//! Patience with who is at work: as long as streams do something, nobody is stuck.

use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, Instant};

use super::hub::patience;
use super::member::Member;
use crate::work;

/// A wait that ends when the streams of this process have done nothing for too long.
pub struct Wait {
    since: Instant,
    progress: u64,
}

impl Wait {
    /// Begins a wait.
    pub fn begin() -> Wait {
        Wait { since: Instant::now(), progress: work::progress() }
    }

    /// Whether nothing was done for twice as long as a hub waits, which can say more and so comes first.
    pub fn is_too_long(&mut self) -> bool {
        let progress = work::progress();
        if std::mem::replace(&mut self.progress, progress) != progress {
            self.since = Instant::now();
        }
        self.since.elapsed() > patience() * 2
    }
}

/// Ranks whose hubs are told that this process is at work.
static RANKS: Mutex<Vec<Weak<Member>>> = Mutex::new(Vec::new());
/// The time from one such message to the next.
const BEAT: Duration = Duration::from_millis(100);

/// A rank's hub is told from now on, as long as the rank is there.
pub fn add(member: &Arc<Member>) {
    static START: Once = Once::new();
    RANKS.lock().unwrap_or_else(|poison| poison.into_inner()).push(Arc::downgrade(member));
    START.call_once(|| {
        let thread = std::thread::Builder::new().name("nccl double's pulse".into());
        thread.spawn(beat).expect("a process can have one more thread");
    });
}

fn beat() {
    let mut told = 0;
    loop {
        std::thread::sleep(BEAT);
        let progress = work::progress();
        if std::mem::replace(&mut told, progress) != progress {
            for member in ranks() {
                member.pulse();
            }
        }
    }
}

fn ranks() -> Vec<Arc<Member>> {
    let mut ranks = RANKS.lock().unwrap_or_else(|poison| poison.into_inner());
    ranks.retain(|member| member.strong_count() > 0);
    ranks.iter().filter_map(Weak::upgrade).collect()
}
