//! Attention kernels as machine code. They are assembled with the formats of a codec, as a cache gets them.
//! The disassembler of the Python package index reads them back.

use crate::cost::{self, Cost};
use crate::sass::Code;
use crate::wheel;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tqkv_core::CodecId;
use tqkv_gpu::{kernel_for, page_format, with_formats};

/// The disassembler, from the Python package index.
const PACKAGE: &str = "nvidia-cuda-nvdisasm==13.5.37";
const FOLDER: &str = "target/nvdisasm";
const PROGRAM: &str = "nvidia/cu13/bin/nvdisasm";

/// The committed text and the programs that make machine code of it.
pub(crate) struct Source<'a> {
    root: &'a Path,
    ptxas: &'a Path,
    disassembler: PathBuf,
    architecture: &'a str,
    text: String,
}

/// The attention kernel of a cache with one codec.
pub(crate) struct Kernel {
    /// Query heads per warp.
    pub(crate) heads: u32,
    pub(crate) registers: u32,
    pub(crate) code: Code,
}

impl<'a> Source<'a> {
    pub(crate) fn open(root: &'a Path, ptxas: &'a Path, architecture: &'a str) -> Result<Self, String> {
        let path = root.join(cost::FILE);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { root, ptxas, disassembler: disassembler(root)?, architecture, text })
    }

    pub(crate) fn architecture(&self) -> &str {
        self.architecture
    }

    /// Assembles the kernel for keys and values of one codec.
    pub(crate) fn kernel(&self, codec: CodecId, group: u32, head_dim: usize) -> Result<Kernel, String> {
        let formats = [page_format(codec); 2];
        let (name, heads) = kernel_for(formats, group, head_dim);
        let name = format!("{name}_d{head_dim}_r{heads}");
        let text = with_formats(&cost::only(&self.text, &name), &name, formats);
        let text = text.ok_or(format!("{name}: no formats"))?;
        let costs = cost::assemble(self.root, self.ptxas, self.architecture, &text)?;
        let Cost { registers, .. } = *costs.get(&name).ok_or(format!("{name}: not assembled"))?;
        let object = cost::object(self.root, self.architecture);
        let output = Command::new(&self.disassembler).args(["-c", "-hex"]).arg(object).output();
        let output = output.map_err(|error| format!("{}: {error}", self.disassembler.display()))?;
        if !output.status.success() {
            return Err(format!("nvdisasm: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let code = Code::parse(&String::from_utf8_lossy(&output.stdout));
        Ok(Kernel { heads, registers, code })
    }
}

/// Returns true if there is a disassembler, or a way to fetch it.
pub(crate) fn has_disassembler() -> bool {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FOLDER).join(PROGRAM);
    env::var_os("TQKV_NVDISASM").is_some() || kept.exists() || wheel::has_pip()
}

/// Path of `nvdisasm`: the variable `TQKV_NVDISASM`, or fetched once into the target folder.
fn disassembler(root: &Path) -> Result<PathBuf, String> {
    match env::var_os("TQKV_NVDISASM") {
        Some(path) => Ok(PathBuf::from(path)),
        None => wheel::program(&root.join(FOLDER), PACKAGE, PROGRAM),
    }
}
