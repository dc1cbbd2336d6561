//! The MPI library as this process sees it, behind the feature `mpi`.
//!
//! It is started once in a process, by a thread that owns it. The same thread must end it, and carries messages in
//! between ([`MpiWorld::serve`]). All unsafe code is in `calls`.

mod calls;

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _};

pub(crate) use calls::{Flying, MpiCommunicator};

/// The owner's work until MPI ends; it gives whether MPI may be ended in order, which takes all processes.
type Work = Box<dyn FnOnce() -> bool + Send>;

/// MPI, started.
#[derive(Debug)]
pub(crate) struct MpiWorld {
    /// graphc's own: no message of others comes its way.
    pub(crate) communicator: MpiCommunicator,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Number among the processes of its host.
    pub(crate) local_rank: u32,
    /// Number of hosts.
    pub(crate) nodes: u32,
    owner: Mutex<Option<MpiOwner>>,
}

/// The thread that owns MPI, before it has its work.
#[derive(Debug)]
struct MpiOwner {
    thread: JoinHandle<()>,
    work: Sender<Work>,
}

const USED: &str = "it serves one job in the life of a process, and has had it";

/// A process has one MPI world, which cannot be started again once it has ended.
static WORLD: OnceLock<Result<Arc<MpiWorld>, String>> = OnceLock::new();

impl MpiWorld {
    /// Starts MPI, the first time.
    ///
    /// # Errors
    /// Where the library cannot serve several threads, was started by somebody else, or serves a job already.
    pub(crate) fn start_once() -> Result<Arc<Self>, String> {
        let world = WORLD.get_or_init(start_mpi).clone()?;
        let used = world.lock_owner().is_none();
        if used { Err(USED.to_owned()) } else { Ok(world) }
    }

    fn lock_owner(&self) -> MutexGuard<'_, Option<MpiOwner>> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the thread that owns MPI its work, once. The thread ends MPI when the work is done.
    ///
    /// # Errors
    /// Where it has had its work.
    pub(crate) fn serve(
        &self,
        work: impl FnOnce() -> bool + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let used = || io::Error::other(USED);
        let owner = self.lock_owner().take().ok_or_else(used)?;
        owner.work.send(Box::new(work)).map_err(|_| used())?;
        Ok(owner.thread)
    }
}

fn start_mpi() -> Result<Arc<MpiWorld>, String> {
    let (found, finding) = mpsc::channel();
    let (sender, work) = mpsc::channel();
    let thread = graphc_host::threads::start_thread("mpi", move || run_owner(&found, &work));
    let thread = thread.map_err(|error| error.to_string())?;
    let mut world = finding.recv().map_err(|_| "the library did not start".to_owned())??;
    world.owner = Mutex::new(Some(MpiOwner { thread, work: sender }));
    Ok(Arc::new(world))
}

/// Runs the thread that owns MPI.
fn run_owner(found: &Sender<Result<MpiWorld, String>>, work: &Receiver<Work>) {
    let universe = match initialize_mpi() {
        Ok((universe, world)) => {
            // Who asked is waiting.
            let _ = found.send(Ok(world));
            universe
        }
        Err(error) => {
            let _ = found.send(Err(error));
            return;
        }
    };
    // The end waits for all processes: where one is dead, or no job was made, the process leaves without.
    if work.recv().is_ok_and(|work| work()) {
        drop(universe); // ends MPI
    } else {
        std::mem::forget(universe);
    }
}

fn initialize_mpi() -> Result<(Universe, MpiWorld), String> {
    let started = mpi::initialize_with_threading(Threading::Multiple);
    let (universe, level) = started.ok_or("the program has started MPI itself already")?;
    if level != Threading::Multiple {
        return Err(format!(
            "the MPI library gives thread level {level:?}, and graphc needs Multiple \
             (MPI_THREAD_MULTIPLE): take a library that was built with it"
        ));
    }
    let whole = universe.world();
    let local = whole.split_shared(whole.rank());
    let first = u32::from(local.rank() == 0);
    let mut nodes = 0_u32;
    whole.all_reduce_into(&first, &mut nodes, SystemOperation::sum());
    let world = MpiWorld {
        rank: whole.rank() as u32,
        size: whole.size() as u32,
        local_rank: local.rank() as u32,
        nodes,
        communicator: own_communicator(&whole)?,
        owner: Mutex::new(None),
    };
    Ok((universe, world))
}

fn own_communicator(whole: &SimpleCommunicator) -> Result<MpiCommunicator, String> {
    MpiCommunicator::new(whole.duplicate()).map_err(|error| error.to_string())
}
