package tqkv;

/** What the library refuses: one line that says what was wrong and what is accepted. */
public final class TqkvException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String code;

    TqkvException(String message, String code) {
        super(message);
        this.code = code;
    }

    static TqkvException argument(String message) {
        return new TqkvException(message, "TQKV_BAD_ARGUMENT");
    }

    /** The status of the C interface, such as "TQKV_BAD_ARGUMENT". */
    public String code() {
        return code;
    }
}
