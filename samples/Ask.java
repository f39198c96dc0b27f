import java.nio.file.Files;
import java.nio.file.Path;
import org.cairn.Device;
import org.cairn.Model;
import org.cairn.Sampler;
import org.cairn.State;
import org.cairn.Stream;

/**
 * Reads a text, keeps the memory, asks it. Arguments: MODEL TEXT QUESTION
 * java -Djava.library.path=build/release/lib -cp build/release/lib/cairn.jar samples/Ask.java MODEL TEXT QUESTION
 */
public final class Ask {
  public static void main(String[] arguments) throws Exception {
    try (Device device = new Device(); Model model = new Model(device, arguments[0]); State state = new State(model);
        Stream stream = new Stream(model); State agent = new State(model)) {
      stream.read(state, Files.readString(Path.of(arguments[1])).stripTrailing());
      agent.restore(state.toBytes());
      stream.generate(agent, "\nQ: " + arguments[2] + "\nA: ", 64, Sampler.GREEDY, "\n")
          .forEachRemaining(System.out::print);
      System.out.println();
    }
  }
}
