package tqkv;

import java.io.IOException;
import java.io.InputStream;
import java.lang.foreign.Arena;
import java.lang.foreign.SymbolLookup;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Locale;

/** Finds the shared library: by the property `tqkv.library`, in the jar, or where Java looks for libraries. */
final class Loader {
    private static final String NAME = "tqkv_capi";

    private Loader() {}

    static SymbolLookup find() {
        String named = System.getProperty("tqkv.library");
        if (named != null) return open(Path.of(named), "tqkv.library is " + named);
        String resource = "native/" + platform() + "/" + System.mapLibraryName(NAME);
        try (InputStream packed = Loader.class.getResourceAsStream(resource)) {
            if (packed != null) return extracted(packed);
        } catch (IOException failure) {
            throw unusable("tqkv/" + resource + " cannot be unpacked: " + failure, failure);
        }
        try {
            System.loadLibrary(NAME);
            return SymbolLookup.loaderLookup();
        } catch (UnsatisfiedLinkError failure) {
            throw unusable("there is no library of tqkv: expected its path in -Dtqkv.library=, tqkv/" + resource + " in the jar, or "
                + System.mapLibraryName(NAME) + " in a folder of java.library.path", failure);
        }
    }

    /** Such as "linux-x86_64". */
    static String platform() {
        String os = System.getProperty("os.name").toLowerCase(Locale.ROOT), arch = System.getProperty("os.arch");
        String system = os.startsWith("mac") ? "macos" : os.startsWith("windows") ? "windows" : os;
        return system + "-" + (arch.equals("amd64") ? "x86_64" : arch);
    }

    private static SymbolLookup extracted(InputStream packed) throws IOException {
        Path file = Files.createTempFile("tqkv", System.mapLibraryName(NAME));
        try {
            Files.copy(packed, file, StandardCopyOption.REPLACE_EXISTING);
            return open(file, "the library in the jar");
        } finally {
            // What is loaded stays, except on Windows, where the file cannot go before the program.
            try {
                Files.delete(file);
            } catch (IOException failure) {
                file.toFile().deleteOnExit();
            }
        }
    }

    private static SymbolLookup open(Path file, String what) {
        try {
            return SymbolLookup.libraryLookup(file.toAbsolutePath(), Arena.global());
        } catch (IllegalArgumentException failure) {
            throw unusable(what + ", which cannot be loaded: expected a library for " + platform(), failure);
        }
    }

    private static UnsatisfiedLinkError unusable(String message, Throwable cause) {
        UnsatisfiedLinkError error = new UnsatisfiedLinkError(message);
        error.initCause(cause);
        return error;
    }
}
