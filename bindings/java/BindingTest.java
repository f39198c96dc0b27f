import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.cairn.CairnException;
import org.cairn.Device;
import org.cairn.Model;
import org.cairn.Sampler;
import org.cairn.Sparse;
import org.cairn.State;
import org.cairn.Status;
import org.cairn.Stream;

/** The main job through the Java binding, and everything that a careless host may do. Arguments: the sample model, small_model.py's. */
public final class BindingTest {
  private static final String NOTE =
      "Note: The code of Marlen Tovik is 4821.\nNote: The iron gate has the colour teal.";
  private static final String QUESTION = "\nQ: What is the code of Marlen Tovik?\nA: ";
  private static String path;
  private static int checks;

  private static void check(boolean claim, String text) {
    ++checks;
    if (!claim) throw new AssertionError(text);
  }

  private static void fails(int code, Runnable action, String text) {
    try {
      action.run();
    } catch (CairnException error) {
      check(error.code() == code, text + ": " + Status.name(error.code()) + ": " + error.getMessage());
      check(!error.getMessage().isEmpty(), text + ": an error has a message");
      return;
    }
    check(false, text + ": no exception");
  }

  private static String ask(Stream stream, State state) {
    StringBuilder said = new StringBuilder();
    Iterator<String> pieces = stream.generate(state, QUESTION, 64, Sampler.GREEDY, "\n");
    while (pieces.hasNext()) said.append(pieces.next());
    return said.toString();
  }

  private static void remembersSavesRestoresAnswers(Model model, Stream stream) throws Exception {
    Path file = Files.createTempDirectory("cairn").resolve("agent.state");
    try (State state = new State(model); State fromFile = new State(model); State fromBytes = new State(model)) {
      stream.read(state, NOTE);
      state.save(file.toString());
      fromFile.restore(file.toString());
      check(fromFile.position() == state.position(), "the position is restored");
      ByteBuffer bytes = state.toBytes();
      fromBytes.restore(bytes);
      check(bytes.equals(fromBytes.toBytes()), "equal states give equal bytes");
      check(ask(stream, fromFile).equals("4821"), "a restored file answers");
      check(ask(stream, fromBytes).equals("4821"), "restored bytes answer");
    } finally {
      Files.deleteIfExists(file);
      Files.deleteIfExists(file.getParent());
    }
  }

  private static void forksAndRewinds(Model model, Stream stream) {
    try (State state = new State(model, 0, 1024)) {
      stream.read(state, NOTE);
      ByteBuffer before = state.toBytes();
      long position = state.position();
      try (State fork = state.fork()) {
        ask(stream, fork);
      }
      check(before.equals(state.toBytes()), "a fork is independent");
      stream.read(state, "\nCorrection: The code of Marlen Tovik is 7730.");
      check(state.canRewind(position), "the window reaches back");
      state.rewind(position);
      check(ask(stream, state).equals("4821"), "rewinding unlearns");
    }
  }

  private static void lendsLogits(Model model, Stream stream) {
    try (State state = new State(model)) {
      stream.read(state, NOTE);
      float[] last = state.lastLogits();
      boolean equal = stream.withLogits(0, logits -> {
        check(logits.isReadOnly() && logits.isDirect(), "logits are lent, not copied");
        check(logits.remaining() == model.vocabSize(), "one logit a token");
        for (int i = 0; i < last.length; ++i) {
          if (logits.get(i) != last[i]) return false;
        }
        return true;
      });
      check(equal, "lent logits are the state's last logits");
      Sampler sampler = new Sampler().temperature(1).topK(20).seed(7);
      check(stream.sample(0, sampler, 3) == stream.sample(0, sampler, 3), "sampling is seeded");
    }
  }

  private static void reportsErrors(Device device, Model model, Stream stream) {
    fails(Status.NOT_FOUND, () -> new Model(device, "/nowhere/at/all.cairn"), "a model that is not there");
    fails(Status.NOT_FOUND, () -> new Device("no such backend", 0, 0), "a backend that is not there");
    try (State state = new State(model)) {
      fails(Status.FORMAT, () -> state.restore(ByteBuffer.allocateDirect(100)), "zeros are no snapshot");
      fails(Status.INVALID_ARGUMENT, () -> stream.decode(List.of(state), -5), "a token out of range");
      int[] tokens = model.tokenize(NOTE);
      fails(Status.INVALID_ARGUMENT, () -> stream.prefill(List.of(state), List.of(tokens, tokens), null, 0, null),
          "two arrays of tokens for one state");
      fails(Status.INVALID_ARGUMENT, () -> stream.prefill(List.of(state, state), List.of(tokens), null, 0, null),
          "one array of tokens for two states");
      check(state.position() == 0, "nothing was read");
      ByteBuffer bytes = state.toBytes();
      fails(Status.LIMIT_EXCEEDED, () -> state.restore(bytes, bytes.remaining() - 1), "a snapshot over the quota");
      state.restore(bytes, bytes.remaining());
    }
  }

  private static void namesAnyFile(Device device, Model model) throws Exception {
    Path folder = Files.createTempDirectory("cairn"), mountain = folder.resolve("\uD83C\uDFD4.state");
    try (State state = new State(model)) {
      state.save(mountain.toString());
      check(Files.exists(mountain), "a name beyond U+FFFF is written as UTF-8");
      state.restore(mountain.toString());
      for (Runnable call : new Runnable[] {() -> state.save(folder + "/cut\0off"), () -> new Device("cpu\0", 0, 1),
               () -> new Model(device, path + "\0")}) {
        try {
          call.run();
          check(false, "a name with a NUL is not refused");
        } catch (IllegalArgumentException error) {
          check(error.getMessage().contains("NUL"), "a name with a NUL is refused as such");
        }
      }
      try {
        new Model(device, "/nowhere/\uD83C\uDFD4");
      } catch (CairnException error) {
        check(error.getMessage().contains("/nowhere/\uD83C\uDFD4: "), "a message is UTF-8");
      }
    } finally {
      Files.deleteIfExists(mountain);
      Files.delete(folder);  // which is empty: nothing else was written
    }
  }

  private static void generatesWithoutALimit(Model model, Stream stream) {
    try (State state = new State(model)) {
      stream.read(state, NOTE);
      Iterator<String> pieces = stream.generate(state, QUESTION, Integer.MAX_VALUE, Sampler.GREEDY, null);
      StringBuilder said = new StringBuilder();
      while (said.length() < 100) said.append(pieces.next());
      check(said.toString().startsWith("4821\n"), "more tokens than memory may be asked for");
    }
  }

  private static void generatesFromWhatWasRead(Model model, Stream stream) {
    try (State state = new State(model); State again = new State(model); State other = new State(model)) {
      stream.read(state, NOTE + QUESTION);
      again.restore(state.toBytes());
      stream.read(other, "The stream has other logits now.");
      for (State read : List.of(state, again)) {
        StringBuilder said = new StringBuilder();
        stream.generate(read, "", 64, Sampler.GREEDY, "\n").forEachRemaining(said::append);
        check(said.toString().equals("4821"), "an empty prompt goes on from what was read: " + said);
      }
    }
  }

  private static void generatesWholeCharacters(Device device, String smallModel) {
    StringBuilder said = new StringBuilder();
    try (Model model = new Model(device, smallModel); State state = new State(model); Stream stream = new Stream(model)) {
      stream.generate(state, "abc", 5, Sampler.GREEDY, "zz").forEachRemaining(piece -> {
        check(!Character.isHighSurrogate(piece.charAt(piece.length() - 1)), "a piece ends with a whole character");
        said.append(piece);
      });
    }
    check(said.toString().equals("\uD83C\uDFD4".repeat(5)), "all is said: " + said);
  }

  private static void callbacksMayThrowAndCancel(Model model, Stream stream) throws Exception {
    String text = "x".repeat(4000);
    try (State state = new State(model)) {
      try {
        stream.read(state, text, null, 0, (done, total) -> {
          throw new IllegalStateException("from the callback");
        });
        check(false, "the exception of a callback is lost");
      } catch (IllegalStateException error) {
        check(error.getMessage().equals("from the callback"), "the caller gets the callback's exception");
      }
      fails(Status.CANCELLED, () -> stream.read(state, text, null, 0, (done, total) -> false), "a cancel");
      state.reset();
      List<Long> seen = new ArrayList<>();
      stream.read(state, text, Sparse.ADAPTIVE, 0, (done, total) -> seen.add(done));
      check(seen.get(seen.size() - 1) == 4001, "progress ends with all tokens");
      String file = Files.createTempDirectory("cairn").resolve("agent.state").toString();
      List<Long> left = new ArrayList<>();
      state.save(file, (done, total) -> left.add(total - done));
      check(left.size() > 1 && left.get(left.size() - 1) < left.get(0), "a save has progress");
      fails(Status.CANCELLED, () -> state.restore(file, 0, (done, total) -> false), "a cancelled restore");
      state.restore(file, Files.size(Path.of(file)), (done, total) -> left.add(total - done));
      check(left.get(left.size() - 1) == 0, "progress of a restore ends with all bytes");
      Files.delete(Path.of(file));
      Files.delete(Path.of(file).getParent());
    }
  }

  private static void closesTwiceAndParentsFirst() {
    Device device = new Device("cpu", 0, 1);
    Model model = new Model(device, path);
    State state = new State(model);
    device.close();
    Stream stream = new Stream(model);
    int[] tokens = model.tokenize(NOTE);
    check(model.chatTemplate().isEmpty(), "a model without a chat template has an empty one");
    model.close();
    fails(Status.INVALID_HANDLE, model::chatTemplate, "the template of a closed model");
    stream.prefill(List.of(state), List.of(tokens), null, 0, null);
    check(state.position() == tokens.length, "children work on when their parents are closed");
    fails(Status.INVALID_HANDLE, model::vocabSize, "a closed model");
    state.close();
    stream.close();
    for (AutoCloseable thing : List.of(state, stream, model, device)) {
      try {
        thing.close();
      } catch (Exception error) {
        throw new AssertionError("closing twice", error);
      }
    }
    fails(Status.INVALID_HANDLE, state::position, "a closed state");
    try {
      state.position();
    } catch (CairnException error) {
      check(error.getMessage().equals("the state was closed"), error.getMessage());
    }
  }

  private static void onAnotherThread(Runnable action) {
    Thread thread = new Thread(action);
    thread.start();
    try {
      thread.join();
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  private static void pause(long milliseconds) {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  private static void closesFromAnotherThreadDuringACall(Model model) {
    State state = new State(model), spare = new State(model);
    Stream stream = new Stream(model), second = new Stream(model);
    int[] tokens = model.tokenize(NOTE);
    stream.prefill(List.of(state), List.of(tokens), null, 0, (done, total) -> {
      onAnotherThread(stream::close);
      onAnotherThread(state::close);
      return true;
    });
    fails(Status.INVALID_HANDLE, () -> stream.prefill(List.of(spare), List.of(tokens), null, 0, null), "a closed stream");
    fails(Status.INVALID_HANDLE, state::position, "a closed state");

    second.prefill(List.of(spare), List.of(tokens), null, 0, null);
    float[] last = spare.lastLogits();
    boolean equal = second.withLogits(0, logits -> {
      onAnotherThread(() -> {
        second.close();
        try (Stream third = new Stream(model); State other = new State(model)) {
          third.read(other, "Takes the memory that was given back.");
        }
      });
      for (int i = 0; i < last.length; ++i) {
        if (logits.get(i) != last[i]) return false;
      }
      return true;
    });
    check(equal, "logits stay while they are lent");
    fails(Status.INVALID_HANDLE, () -> second.withLogits(0, logits -> 0), "the logits of a closed stream");
    spare.close();
  }

  private static void closesWhileOthersCall(Model model) throws InterruptedException {
    for (int round = 0; round < 200; ++round) {
      State state = new State(model);
      Throwable[] caught = new Throwable[1];
      Thread caller = new Thread(() -> {
        try {
          for (boolean isNew = true; isNew;) {
            try (State fork = state.fork()) {
              isNew = fork.position() == 0;
            }
          }
        } catch (Throwable error) {
          caught[0] = error;
        }
      });
      caller.start();
      Thread.sleep(0, 100_000);
      state.close();
      caller.join();
      check(caught[0] instanceof CairnException && ((CairnException) caught[0]).code() == Status.INVALID_HANDLE,
          "the closed state is refused: " + caught[0]);
    }
  }

  private static void collectsNothingThatACallUses(Model model) {
    try (State state = new State(model)) {
      // Nothing but the call itself holds the stream.
      new Stream(model).read(state, NOTE, null, 0, (done, total) -> {
        System.gc();
        pause(20);  // for the collector to give back what it found
        return true;
      });
      check(state.position() > 0, "the text is read");
    }
  }

  private static void collectsInAnyOrder() throws InterruptedException {
    for (int round = 0; round < 3; ++round) {
      Object[] things = new Object[4];
      things[0] = new Device("cpu", 0, 1);
      things[1] = new Model((Device) things[0], path);
      things[2] = new State((Model) things[1]);
      things[3] = new Stream((Model) things[1]);
      int[][] orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}};
      for (int index : orders[round]) {
        things[index] = null;
        System.gc();
        Thread.sleep(5);
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    path = arguments[0];
    try (Device device = new Device("cpu", 0, 1); Model model = new Model(device, path);
        Stream stream = new Stream(model)) {
      remembersSavesRestoresAnswers(model, stream);
      forksAndRewinds(model, stream);
      lendsLogits(model, stream);
      reportsErrors(device, model, stream);
      namesAnyFile(device, model);
      generatesWithoutALimit(model, stream);
      generatesFromWhatWasRead(model, stream);
      generatesWholeCharacters(device, arguments[1]);
      callbacksMayThrowAndCancel(model, stream);
      closesFromAnotherThreadDuringACall(model);
      closesWhileOthersCall(model);
      collectsNothingThatACallUses(model);
    }
    closesTwiceAndParentsFirst();
    collectsInAnyOrder();
    System.out.println(checks + " checks passed");
  }
}
