//! Memory, streams, events and graphs.

pub(crate) use crate::failure::{
    CAPTURE_UNSUPPORTED, Failure, ILLEGAL_ADDRESS, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND,
    OUT_OF_MEMORY, UNSUPPORTED_PTX,
};
use crate::launch::{Function, Launch};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard};
use tqkv_gpu_kernels::args::Argument;

/// Bytes of each device's memory.
pub(crate) const MEMORY: usize = 12 << 20;

/// A run of device memory: an allocation, or host memory that a test mapped.
pub(crate) struct Allocation {
    pub(crate) context: usize,
    bytes: Bytes,
}

enum Bytes {
    Own(Vec<u8>),
    /// The address and the length of host memory.
    Mapped(usize, usize),
}

impl Allocation {
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Own(bytes) => bytes,
            // SAFETY: who mapped the memory keeps it until the call that uses it returns, because work on mapped
            // memory is done at once.
            Bytes::Mapped(at, len) => unsafe { std::slice::from_raw_parts(*at as *const u8, *len) },
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Own(bytes) => bytes,
            // SAFETY: as for `bytes`; nothing else uses the memory during the call.
            Bytes::Mapped(at, len) => unsafe { std::slice::from_raw_parts_mut(*at as *mut u8, *len) },
        }
    }
}

/// One work item of a stream; items run in order.
#[derive(Clone)]
pub(crate) enum Work {
    /// A copy from host memory, which is read when the item runs.
    In {
        to: u64,
        from: usize,
        len: usize,
    },
    /// A copy to page-locked host memory.
    Out {
        to: usize,
        from: u64,
        len: usize,
    },
    Copy {
        to: u64,
        from: u64,
        len: usize,
    },
    Set {
        to: u64,
        value: u8,
        len: usize,
    },
    Free {
        at: u64,
    },
    Launch(Launch),
}

pub(crate) struct Stream {
    pub(crate) context: usize,
    queue: VecDeque<Work>,
    /// Number of items queued so far; the next field is the number done.
    asked: u64,
    done: u64,
    /// The captured items; `None` outside of a capture.
    pub(crate) capture: Option<Vec<Work>>,
    fault: Option<Failure>,
}

impl Stream {
    pub(crate) fn new(context: usize) -> Self {
        Self { context, queue: VecDeque::new(), asked: 0, done: 0, capture: None, fault: None }
    }

    /// Returns true if item number `until` is not done yet.
    pub(crate) fn is_before(&self, until: u64) -> bool {
        self.done < until
    }
}

#[derive(Default)]
pub(crate) struct Machine {
    pub(crate) memory: BTreeMap<u64, Allocation>,
    pub(crate) pinned: BTreeMap<usize, Vec<u64>>,
    pub(crate) streams: HashMap<usize, Stream>,
    /// The stream and the item number after which each event was recorded.
    pub(crate) events: HashMap<usize, (usize, u64)>,
    pub(crate) modules: HashMap<usize, String>,
    pub(crate) functions: HashMap<usize, Function>,
    pub(crate) graphs: HashMap<usize, Vec<Work>>,
    handles: usize,
    next: u64,
    /// Work is done when it is asked for.
    is_eager: bool,
}

static MACHINE: Mutex<Option<Machine>> = Mutex::new(None);

/// Locks the machine and runs `f` on it.
pub(crate) fn with<R>(f: impl FnOnce(&mut Machine) -> R) -> R {
    let mut guard: MutexGuard<'_, Option<Machine>> =
        MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    f(guard.get_or_insert_default())
}

impl Machine {
    /// Runs a launch in the interpreter.
    fn launch(&mut self, launch: &Launch) -> Result<(), Failure> {
        if !self.modules.contains_key(&launch.function.module) {
            eprintln!("the fake driver: a kernel was unloaded before it ran");
            return Err(ILLEGAL_ADDRESS);
        }
        let mut places = Vec::new();
        let mut arguments = Vec::new();
        for (&value, &is_pointer) in launch.values.iter().zip(&launch.function.pointers) {
            if !is_pointer {
                arguments.push(Argument::Word(value as u32));
                continue;
            }
            let (start, offset) = self.locate(value).ok_or(ILLEGAL_ADDRESS)?;
            if self.memory[&start].context != launch.function.context {
                return Err(ILLEGAL_ADDRESS);
            }
            arguments.push(Argument::Memory(places.len()));
            places.push((start, offset));
        }
        // For the interpreter each pointer is a separate buffer, up to the end of its allocation.
        let before: Vec<Vec<u8>> =
            places.iter().map(|(start, offset)| self.memory[start].bytes()[*offset..].to_vec()).collect();
        let mut buffers = before.clone();
        let [x, y, z] = launch.warps;
        let run = AssertUnwindSafe(|| {
            let blocks = (0..z).flat_map(|z| (0..y).map(move |y| (y, z)));
            let warps = blocks.flat_map(|(y, z)| (0..x).map(move |x| (x, y, z)));
            launch.function.kernel.launch(warps, &arguments, &mut buffers);
        });
        if std::panic::catch_unwind(run).is_err() {
            return Err(ILLEGAL_ADDRESS);
        }
        for ((start, offset), (before, after)) in places.iter().zip(before.iter().zip(&buffers)) {
            let Some(allocation) = self.memory.get_mut(start) else { return Err(INVALID_VALUE) };
            let bytes = allocation.bytes_mut()[*offset..].iter_mut();
            for (byte, (before, after)) in bytes.zip(before.iter().zip(after)) {
                if before != after {
                    *byte = *after;
                }
            }
        }
        Ok(())
    }

    /// A new number that no other object has.
    pub(crate) fn handle(&mut self) -> usize {
        self.handles += 1;
        0x1000 + self.handles
    }

    /// Bytes that are allocated on a device.
    pub(crate) fn used(&self, context: usize) -> usize {
        let here = self.memory.values().filter(|allocation| allocation.context == context);
        here.map(|allocation| allocation.bytes().len()).sum()
    }

    pub(crate) fn allocate(&mut self, context: usize, len: usize) -> Result<u64, Failure> {
        if self.used(context) + len > MEMORY {
            return Err(OUT_OF_MEMORY);
        }
        // There is a gap after each allocation, so that a run over its end finds no other allocation.
        // Contents are garbage, as on a GPU.
        let at = 0x7000_0000_0000 + self.next;
        self.next += (len as u64).next_multiple_of(256) + 4096;
        self.memory.insert(at, Allocation { context, bytes: Bytes::Own(vec![0xff; len]) });
        Ok(at)
    }

    /// Makes host memory a run of device memory at its own address, in place of what was mapped there before.
    /// From now on all work is done at once, because its memory may be gone when something waits.
    pub(crate) fn map(&mut self, context: usize, at: usize, len: usize) {
        let end = (at + len) as u64;
        self.memory.retain(|&start, allocation| {
            !matches!(allocation.bytes, Bytes::Mapped(_, len) if start < end && (at as u64) < start + len as u64)
        });
        self.memory.insert(at as u64, Allocation { context, bytes: Bytes::Mapped(at, len) });
        self.is_eager = true;
    }

    /// The allocation that holds `at`, and the offset in it.
    pub(crate) fn locate(&self, at: u64) -> Option<(u64, usize)> {
        let (&start, allocation) = self.memory.range(..=at).next_back()?;
        let offset = (at - start) as usize;
        (offset < allocation.bytes().len()).then_some((start, offset))
    }

    fn bytes(&mut self, at: u64, len: usize) -> Result<&mut [u8], Failure> {
        let (start, offset) = self.locate(at).ok_or(ILLEGAL_ADDRESS)?;
        let allocation = self.memory.get_mut(&start).ok_or(ILLEGAL_ADDRESS)?;
        allocation.bytes_mut().get_mut(offset..offset + len).ok_or(ILLEGAL_ADDRESS)
    }

    /// Returns true if a run of host memory is completely page-locked.
    pub(crate) fn is_pinned(&self, at: usize, len: usize) -> bool {
        let Some((&start, words)) = self.pinned.range(..=at).next_back() else { return false };
        at + len <= start + 8 * words.len()
    }

    /// Adds an item to a stream, or to its capture.
    pub(crate) fn ask(&mut self, number: usize, work: Work) -> Result<(), Failure> {
        let is_eager = self.is_eager;
        let stream = self.stream(number)?;
        match &mut stream.capture {
            Some(captured) if matches!(work, Work::Free { .. }) => {
                captured.clear();
                return Err(CAPTURE_UNSUPPORTED);
            }
            Some(captured) => captured.push(work),
            None => {
                stream.queue.push_back(work);
                stream.asked += 1;
                if is_eager {
                    return self.finish(number);
                }
            }
        }
        Ok(())
    }

    /// The handle of a context's default stream.
    pub(crate) fn default_stream(&mut self, context: usize) -> usize {
        self.streams.entry(context).or_insert_with(|| Stream::new(context));
        context
    }

    pub(crate) fn stream(&mut self, stream: usize) -> Result<&mut Stream, Failure> {
        self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)
    }

    /// Records an event after all work of a stream.
    pub(crate) fn record(&mut self, event: usize, stream: usize) -> Result<(), Failure> {
        let asked = self.stream(stream)?.asked;
        self.events.insert(event, (stream, asked));
        Ok(())
    }

    /// Runs the work of a stream up to item number `until`.
    pub(crate) fn run(&mut self, stream: usize, until: u64) -> Result<(), Failure> {
        loop {
            let here = self.stream(stream)?;
            if here.capture.is_some() {
                return Err(CAPTURE_UNSUPPORTED);
            }
            if let Some(fault) = here.fault {
                return Err(fault);
            }
            if here.done >= until {
                return Ok(());
            }
            let work = here.queue.pop_front().ok_or(INVALID_HANDLE)?;
            here.done += 1;
            if let Err(fault) = self.work(work) {
                self.stream(stream)?.fault = Some(fault);
                return Err(fault);
            }
        }
    }

    /// Runs all work of a stream.
    pub(crate) fn finish(&mut self, stream: usize) -> Result<(), Failure> {
        let asked = self.stream(stream)?.asked;
        self.run(stream, asked)
    }

    fn work(&mut self, work: Work) -> Result<(), Failure> {
        match work {
            Work::In { to, from, len } => {
                if !self.is_pinned(from, len) {
                    eprintln!("the fake driver: host memory was freed while a copy from it was under way");
                    return Err(ILLEGAL_ADDRESS);
                }
                // SAFETY: the check above shows that this is page-locked memory of this machine with at least
                // this length.
                let source = unsafe { std::slice::from_raw_parts(from as *const u8, len) };
                self.bytes(to, len)?.copy_from_slice(source);
            }
            Work::Out { to, from, len } => {
                if !self.is_pinned(to, len) {
                    eprintln!("the fake driver: host memory was freed while a copy to it was under way");
                    return Err(ILLEGAL_ADDRESS);
                }
                let source = self.bytes(from, len)?.to_vec();
                // SAFETY: the check above shows that this is page-locked memory of this machine with at least
                // this length.
                unsafe { std::slice::from_raw_parts_mut(to as *mut u8, len) }.copy_from_slice(&source);
            }
            Work::Copy { to, from, len } => {
                let source = self.bytes(from, len)?.to_vec();
                self.bytes(to, len)?.copy_from_slice(&source);
            }
            Work::Set { to, value, len } => self.bytes(to, len)?.fill(value),
            Work::Free { at } => {
                self.memory.remove(&at).ok_or(INVALID_VALUE)?;
            }
            Work::Launch(launch) => self.launch(&launch)?,
        }
        Ok(())
    }

    /// A copy of the device memory at `at`, as it is now.
    pub(crate) fn read(&mut self, at: u64, len: usize) -> Result<Vec<u8>, Failure> {
        Ok(self.bytes(at, len)?.to_vec())
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.bytes(at, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}
