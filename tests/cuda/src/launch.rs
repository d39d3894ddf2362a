//! A kernel, and a launch of it.

use crate::parse::Kernel;
use std::sync::Arc;

/// A kernel, with a flag per parameter that is true for pointers.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) context: usize,
    /// The module of the kernel, which must still be loaded when the kernel runs.
    pub(crate) module: usize,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) pointers: Vec<bool>,
}

/// A launch, with the values of its parameters.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) function: Function,
    /// Warps along x over all blocks together, because kernels count them like that; then blocks along y and
    /// z.
    pub(crate) warps: [u32; 3],
    pub(crate) values: Vec<u64>,
}

impl Function {
    /// Reads kernel `name` of a module's text, if the text has it.
    pub(crate) fn new(context: usize, (module, text): (usize, &str), name: &str) -> Option<Self> {
        let start = text.find(&format!(".entry {name}("))?;
        let head = text[start..].split(")\n").next()?;
        let parameters = head.lines().filter(|line| line.trim_start().starts_with(".param"));
        let pointers = parameters.map(|line| line.contains(".u64")).collect();
        Some(Self { context, module, kernel: Arc::new(Kernel::new(text, name)), pointers })
    }
}
